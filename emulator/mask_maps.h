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

/// Runs the map of the mask function `kMask`, for tiles of 128 keys.
template <int kMask>
RunMap map_of(const tile::Captures& captures) {
  return [captures](const tile_lists::Config& c, const mask_map::Args& args, std::int64_t blocks) {
    constexpr tile::Expressions kOnly = {.score = 0, .mask = kMask};
    if (c.tile_k != 128) std::abort();
    if (c.tile_q == 128) {
      run_mask_map<mask_map::Config{.expressions = kOnly}>(args, blocks, captures);
    } else {
      run_mask_map<mask_map::Config{.tile_q = 64, .expressions = kOnly}>(args, blocks, captures);
    }
  };
}

}  // namespace
