/// Counters that hand out tiles (tile/hopper/tile_counter.cuh) on the host.
#pragma once

#include "cuda/tile/hopper/tile_counter_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda::host {

/// The workspace of a counter.
MemoryPart tile_counter_memory();
/// Takes it, for one launch.
tile::TileCounter take_tile_counter(WorkspaceCutter& workspace);

}  // namespace tilewise::cuda::host
