/// How the Hopper kernels describe the keys that position hides, and where lengths come from.
#pragma once

#include "cuda/tile/mask_args.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// Which lengths the device looks up: none, of keys, or of packed sequences.
tile::Lengths sm90_lengths(const Problem& problem);

/// The problem's diagonals (`Args::low`, `high`, `top`), and which of them hide anything.
struct Sm90Mask {
  int low = 0, high = 0, top = 0;
  tile::Mask mask = tile::Mask::none;
};
Sm90Mask sm90_mask(const Problem& problem);

}  // namespace tilewise::cuda
