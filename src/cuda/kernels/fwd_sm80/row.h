/// fwd_sm80 on the host: its rows and what the pack holds of it. See fwd_sm80/README.md.
#pragma once

#include <vector>

#include "cuda/jit/unit.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

extern const KernelRow kFlashForwardSm80;
/// The 16 x 16 tiles of seed 004, one warp: to be named, never chosen.
extern const KernelRow kFlashForwardTile16;

void add_fwd_sm80_units(std::vector<PackUnit>& units, int arch);
/// Not packed, but watched by the tests as the census watches the packed ones.
void add_fwd_sm80_dropout_units(std::vector<PackUnit>& units, int arch);

}  // namespace tilewise::cuda
