/// Gradients of the tensors that a score function captures. See bwd_sm80/captures.md.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/jit/unit.h"
#include "cuda/kernels/bwd_sm80/args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// True when the caller wants the gradient of a captured tensor.
bool wants_captures(const Problem& problem);

/// The unit of a config of bwd_dq_sm80 with the problem's functions.
KernelUnit captures_unit(const bwd_sm80::Config& config, int min_blocks, const Problem& problem);

/// The same for one captured tensor, a gate of blocks (gate.h).
KernelUnit gate_unit(const bwd_sm80::Config& config, int min_blocks, const Problem& problem,
                     std::size_t capture);

/// The sums, float32, or tile::ExactSum with `deterministic` where several blocks add to one.
void add_capture_memory(const Problem& problem, std::vector<MemoryPart>& items);

/// Writes the wanted gradients. `pass` and `config` are those of bwd_dq_sm80 on the same problem,
/// with all keys in one part; the workspace is what add_capture_memory() adds.
void capture_gradients(const Problem& problem, const bwd_sm80::Args& pass,
                       const bwd_sm80::Config& config, int min_blocks, WorkspaceCutter& workspace,
                       void* stream);

/// Sums of a gradient, side by side, to the tensor that the caller gave.
void store_capture(const float* sums, bool exact, const Tensor& to, int device, void* stream);

}  // namespace tilewise::cuda
