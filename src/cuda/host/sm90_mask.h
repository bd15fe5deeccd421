/// Which keys position hides, and whose lengths decide it, as the Hopper kernels take them.
#pragma once

#include "cuda/tile/mask_args.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// Whose lengths the device must look up.
tile::Lengths sm90_lengths(const Problem& problem);

/// Diagonals of the problem as the kernels take them, and which of them hide anything.
struct Sm90Mask {
  int low = 0, high = 0, top = 0;
  tile::Mask mask = tile::Mask::none;
};
Sm90Mask sm90_mask(const Problem& problem);

}  // namespace tilewise::cuda
