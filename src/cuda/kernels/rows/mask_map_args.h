/// mask_map: constants and parameters. See rows/README.md.
#pragma once

#include "cuda/kernels/rows/tile_lists_args.h"
#include "cuda/tile/expression_args.h"

namespace tilewise::mask_map {

struct Config {
  int tile_q = 128;         ///< queries of a tile, a power of two
  int tile_k = 128;         ///< keys of a tile, 16 or a multiple of 32
  int shared_bytes = 1024;  ///< a power of two
  tile::Expressions expressions = {.score = 0, .mask = 1};

  bool operator==(const Config&) const = default;
};

/// Without the caller's list: that is not there.
using Args = tile_lists::Args;

inline constexpr int kThreads = 512;
/// Two counts, then both rows of bits.
constexpr long long shared_bytes(long long words) {
  return 4 * (tile_lists::kCountWords + 2 * words);
}

}  // namespace tilewise::mask_map
