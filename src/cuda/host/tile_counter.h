/// Counters that hand out tiles (tile/hopper/tile_counter.cuh) on the host.
#pragma once

#include "cuda/tile/hopper/tile_counter_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda::host {

/// The workspace of a counter.
MemoryPart tile_counter_memory();
/// Takes it, for one launch. `words`: so many, side by side.
tile::TileCounter take_tile_counter(WorkspaceCutter& workspace, std::int64_t words = 1);

}  // namespace tilewise::cuda::host
