/// mask_map on the host: the tiles that a problem's mask function leaves. See rows/README.md.
#pragma once

#include "cuda/jit/kernel.h"
#include "cuda/kernels/rows/mask_map_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// True where a map of tiles pays: sequences have many, and the order of one sequence's tiles may
/// depend on others.
bool has_many_tiles(const Problem& problem);

/// True where kernels of tiles take a list that mask_map makes: a mask function without a list of
/// the caller's, in sequences that have many tiles.
bool maps_mask(const Problem& problem);

/// The kernel for tiles of this size, compiled where that is needed.
mask_map::Config mask_map_config(int tile_q, int tile_k, int words);
KernelUnit mask_map_unit(const Problem& problem, const mask_map::Config& config);

/// Starts it, one block for each row of tiles. The next kernel may start before it ends and waits
/// by wait_for_previous().
void launch_mask_map(const Problem& problem, const mask_map::Config& config,
                     const mask_map::Args& args, std::int64_t blocks, void* stream);

}  // namespace tilewise::cuda
