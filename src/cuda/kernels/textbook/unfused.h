/// eager and fused on CUDA: matrix products by cuBLAS around S x S matrices, and passes over those.
/// See textbook/README.md.
#pragma once

#include "plan/kernel_row.h"

namespace tilewise::cuda {

extern const KernelRow kEagerForward, kEagerBackward;
extern const KernelRow kFusedForward, kFusedBackward;

}  // namespace tilewise::cuda
