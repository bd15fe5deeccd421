/// bwd_sm80 and bwd_dq_sm80 on the host: the rows and what the pack holds of them. See bwd_sm80.md.
#pragma once

#include <vector>

#include "cuda/jit/unit.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// One pass, dQ by atomic additions.
extern const KernelRow kFlashBackwardSm80;
/// Two passes, repeatable; float32.
extern const KernelRow kFlashBackwardTwoPassSm80;

void add_bwd_sm80_units(std::vector<PackUnit>& units, int arch);

}  // namespace tilewise::cuda
