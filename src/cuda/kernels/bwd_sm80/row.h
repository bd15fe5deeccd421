/// bwd_sm80 and bwd_dq_sm80 on the host: the rows and what the pack holds of them. See
/// bwd_sm80/README.md.
#pragma once

#include <vector>

#include "cuda/jit/unit.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// One pass, dQ by atomic additions.
extern const KernelRow kFlashBackwardSm80;
/// Two passes, repeatable; float32.
extern const KernelRow kFlashBackwardTwoPassSm80;

/// Where rounding of O shows in delta (refines() of bwd_sm80/tiles.h), delta from P less dLSE:
/// (B, Hq, rows) floats of the workspace.
struct RefinedDelta {
  const float* delta = nullptr;
  std::int64_t rows = 0;
};
RefinedDelta refined_delta(const Problem& problem, WorkspaceCutter& workspace, void* stream);
void add_refined_delta_memory(const Problem& problem, std::vector<MemoryPart>& items);
/// Gradients of captured tensors beside a row of another kernel. The workspace is what
/// add_refined_delta_memory() and add_capture_memory() add.
void capture_gradients_apart(const Problem& problem, WorkspaceCutter& workspace, void* stream);

void add_bwd_sm80_units(std::vector<PackUnit>& units, int arch);
/// Dropout and the gradient of a bias: not packed, but watched by the tests as the census watches
/// the packed ones.
void add_bwd_sm80_option_units(std::vector<PackUnit>& units, int arch);

}  // namespace tilewise::cuda
