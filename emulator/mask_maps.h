/// tile_lists::from_function on the emulator: run for the mask functions of expression_samples.h.
#pragma once

#include <cstdlib>

#include "block_lists.h"
#include "cuda/kernels/tile_lists/from_function.cuh"

namespace {

using namespace tilewise;

template <tile_lists::Config kConfig>
void run_from_function(const tile_lists::Args& args, std::int64_t blocks,
                       const tile::Captures& captures) {
  const tile::Expressed<tile_lists::Args> expressed{args, captures};
  for (unsigned i = 0; i < blocks; ++i) {
    emulator::run_block(i, tile_lists::kFunctionThreads,
                        [&] { tile_lists::from_function<kConfig>(expressed); });
  }
}

/// Queries and keys of a tile.
struct TileSize {
  int q, k;
};

/// Runs the map of the mask function `kMask`, for tiles of 128 and 64 x 128, and of `kMore`.
template <int kMask, TileSize... kMore>
RunMap map_of(const tile::Captures& captures) {
  return
      [captures](const tile_lists::Config& c, const tile_lists::Args& args, std::int64_t blocks) {
        const auto runs = [&]<TileSize kSize>() {
          if (c.tile_q != kSize.q || c.tile_k != kSize.k) return false;
          run_from_function<tile_lists::Config{
              .tile_q = kSize.q, .tile_k = kSize.k, .expressions = {.score = 0, .mask = kMask}}>(
              args, blocks, captures);
          return true;
        };
        const bool ran = runs.template operator()<TileSize{128, 128}>() ||
                         runs.template operator()<TileSize{64, 128}>() ||
                         (runs.template operator()<kMore>() || ...);
        if (!ran) std::abort();
      };
}

}  // namespace
