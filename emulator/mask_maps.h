/// tile_lists::from_function on the emulator: run for the mask functions of expression_samples.h.
#pragma once

#include <cstdlib>

#include "block_lists.h"
#include "cuda/kernels/tile_lists/cut_bits.cuh"

namespace {

using namespace tilewise;

template <tile_lists::Config kConfig>
void run_with_function(const cuda::ListsStep& step, const tile::Captures& captures) {
  const auto run = [&](const auto& args, int threads, auto kernel) {
    const tile::Expressed<std::remove_cvref_t<decltype(args)>> expressed{args, captures};
    for (unsigned i = 0; i < step.blocks; ++i)
      emulator::run_block(i, threads, [&] { kernel(expressed); });
  };
  if (step.kernel.work == cuda::ListsKernel::Work::from_function) {
    run(std::get<tile_lists::FunctionArgs>(step.args), tile_lists::kFunctionThreads,
        tile_lists::from_function<kConfig>);
  } else if constexpr (kConfig.tile_k == 128) {
    run(std::get<tile_lists::CutBitsArgs>(step.args), tile_lists::kOrderThreads,
        tile_lists::cut_bits<kConfig>);
  }
}

constexpr tile_lists::Config telling(tile_lists::Config c) {
  c.tells_placed = true;
  return c;
}

/// Queries and keys of a tile.
struct TileSize {
  int q, k;
};

/// Runs the map of the mask function `kMask`, for tiles of 128 and 64 x 128, and of `kMore`.
template <int kMask, TileSize... kMore>
RunMap map_of(const tile::Captures& captures) {
  return [captures](const cuda::ListsStep& step) {
    const tile_lists::Config& c = step.kernel.config;
    const auto runs = [&]<TileSize kSize>() {
      if (c.tile_q != kSize.q || c.tile_k != kSize.k) return false;
      constexpr tile_lists::Config kPlain = {
          .tile_q = kSize.q, .tile_k = kSize.k, .expressions = {.score = 0, .mask = kMask}};
      if (c.tells_placed) {
        run_with_function<telling(kPlain)>(step, captures);
      } else {
        run_with_function<kPlain>(step, captures);
      }
      return true;
    };
    const bool ran = runs.template operator()<TileSize{128, 128}>() ||
                     runs.template operator()<TileSize{64, 128}>() ||
                     (runs.template operator()<kMore>() || ...);
    if (!ran) std::abort();
  };
}

}  // namespace
