/// bwd_sm80 and bwd_dq_sm80 on the host: the rows and what the pack holds of them. See
/// bwd_sm80/README.md.
#pragma once

#include <vector>

#include "cuda/jit/unit.h"
#include "cuda/kernels/rows/delta.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// One pass, dQ by atomic additions.
extern const KernelRow kFlashBackwardSm80;
/// Two passes, repeatable; float32.
extern const KernelRow kFlashBackwardTwoPassSm80;

/// For rows of other kernels: statistics of a problem's rows in the workspace, with delta from P
/// less dLSE of `all` of them, or under a bias of those alone whose LSE is too coarse.
RowStatistics refined_rows(const Problem& problem, bool all, WorkspaceCutter& workspace,
                           void* stream);
void add_refined_rows_memory(const Problem& problem, std::vector<MemoryPart>& items);
/// Gradients of captured tensors. The workspace is what add_refined_rows_memory() and
/// add_capture_memory() add.
void capture_gradients_apart(const Problem& problem, WorkspaceCutter& workspace, void* stream);
/// The gradient of the bias where the problem asks for it, from the statistics that
/// refined_rows() gave. The workspace is what add_bias_gradient_memory() adds.
void bias_gradient_apart(const Problem& problem, const RowStatistics& rows,
                         WorkspaceCutter& workspace, void* stream);
void add_bias_gradient_memory(const Problem& problem, std::vector<MemoryPart>& items);

void add_bwd_sm80_units(std::vector<PackUnit>& units, int arch);
/// Dropout and the gradient of a bias: not packed, but watched by the tests as the census watches
/// the packed ones.
void add_bwd_sm80_option_units(std::vector<PackUnit>& units, int arch);

}  // namespace tilewise::cuda
