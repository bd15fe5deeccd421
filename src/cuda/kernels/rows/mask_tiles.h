/// mask_tiles on the host: the tiles that a problem's bool mask leaves. See rows/README.md.
#pragma once

#include "cuda/jit/unit.h"
#include "cuda/kernels/rows/mask_tiles_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// True where the kernels for Hopper can take a list that mask_tiles makes: a bool mask without a
/// list or a mask function, in sequences that have many tiles.
bool maps_bool_mask(const Problem& problem);
/// True where they do: the mask is one of keys, and tiles, which are never cut into parts, fill a
/// card.
bool prefers_map(const Problem& problem);

KernelUnit mask_tiles_unit(const mask_tiles::Config& config);

}  // namespace tilewise::cuda
