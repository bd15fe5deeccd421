/// The flash kernels of the CPU: tiled, online softmax, O(S) memory. flash_fwd.md and flash_bwd.md
/// hold the schedules.
#pragma once

#include <span>

#include "plan/kernel_row.h"

namespace tilewise::cpu {

/// flash_fwd_* and flash_bwd_*, best instruction set first.
std::span<const KernelRow> flash_rows();

void flash_forward(const KernelRow& row, const Problem& problem, const Context& context);
void flash_backward(const KernelRow& row, const Problem& problem, const Context& context);

Cost flash_forward_cost(const KernelRow& row, const Problem& problem, const Hardware& machine);
Cost flash_backward_cost(const KernelRow& row, const Problem& problem, const Hardware& machine);

}  // namespace tilewise::cpu
