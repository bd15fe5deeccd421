/// The flash kernels of the CPU: tiled, online softmax, O(S) memory. flash_fwd.md, flash_decode.md
/// and flash_bwd.md hold the schedules.
#pragma once

#include <span>

#include "cpu/micro/isa.h"
#include "plan/kernel_row.h"
#include "plan/time_model.h"

namespace tilewise::cpu {

/// flash_fwd_* and flash_bwd_*, best instruction set first.
std::span<const KernelRow> flash_rows();

void flash_forward(const KernelRow& row, const Problem& problem, const Context& context);
void flash_backward(const KernelRow& row, const Problem& problem, const Context& context);

// The decisions of the rows for a problem that they support.
Prepared flash_forward_prepared(const KernelRow& row, const Problem& problem,
                                const Hardware& machine);
Prepared flash_backward_prepared(const KernelRow& row, const Problem& problem,
                                 const Hardware& machine);

/// The same passes with products of bfloat16 factors: flash_fwd_bf16.md.
void flash_forward_bf16(const KernelRow& row, const Problem& problem, const Context& context);
Prepared flash_forward_bf16_prepared(const KernelRow& row, const Problem& problem,
                                     const Hardware& machine);
/// As many tasks as flash_forward_bf16 has at most.
std::int64_t smallest_tasks_bf16(const Problem& problem);
void flash_backward_bf16(const KernelRow& row, const Problem& problem, const Context& context);
Prepared flash_backward_bf16_prepared(const KernelRow& row, const Problem& problem,
                                      const Hardware& machine);

/// The schedule of flash_fwd_* for few query rows a head: those of a key head share what is read,
/// and keys are split.
bool few_query_rows(const Problem& problem);
/// True where that schedule beats tiles of bfloat16 products.
bool beats_tiles(const Problem& problem);
/// True where it multiplies bfloat16 factors, by vdpbf16ps or on tiles.
bool reads_bf16(const Problem& problem, Isa isa);
/// Backward: true for sequences that fill half of a tile of bfloat16 products or less.
bool half_tiles(const Problem& problem);
/// What the time model counts, and whose terms it takes.
CpuForm flash_form(const Problem& problem, Isa isa);
CpuWork flash_work(const Problem& problem, const Hardware& machine, Isa isa);
void flash_decode(const KernelRow& row, const Problem& problem, const Context& context);
Prepared flash_decode_prepared(const KernelRow& row, const Problem& problem,
                               const Hardware& machine);

}  // namespace tilewise::cpu
