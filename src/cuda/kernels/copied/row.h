/// The Hopper kernels on copies of tensors that TMA cannot reach. See copied/README.md.
#pragma once

#include "plan/kernel_row.h"

namespace tilewise::cuda {

extern const KernelRow kFlashForwardCopiedSm90, kFlashBackwardCopiedSm90;

}  // namespace tilewise::cuda
