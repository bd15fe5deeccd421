/// mask_map on the emulator: run for the mask functions of expression_samples.h.
#pragma once

#include <cstdlib>

#include "block_lists.h"
#include "cuda/kernels/rows/mask_map.cuh"
#include "cuda/kernels/rows/mask_map.h"

namespace tilewise::mask_map {
alignas(1024) unsigned char memory[64 * 1024];
}

namespace {

using namespace tilewise;

template <mask_map::Config kConfig>
void run_mask_map(const mask_map::Args& args, std::int64_t blocks, const tile::Captures& captures) {
  const tile::Expressed<mask_map::Args> expressed{args, captures};
  emulator::shared_base = mask_map::memory;
  for (unsigned i = 0; i < blocks; ++i)
    emulator::run_block(i, mask_map::kThreads, [&] { mask_map::kernel<kConfig>(expressed); });
}

/// Queries and keys of a tile.
struct TileSize {
  int q, k;
};

/// Runs the map of the mask function `kMask`, for tiles of 128 and 64 x 128, and of `kMore`.
template <int kMask, TileSize... kMore>
RunMap map_of(const tile::Captures& captures) {
  return [captures](const tile_lists::Config& c, const mask_map::Args& args, std::int64_t blocks) {
    const auto runs = [&]<TileSize kSize>() {
      if (c.tile_q != kSize.q || c.tile_k != kSize.k) return false;
      run_mask_map<mask_map::Config{
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
