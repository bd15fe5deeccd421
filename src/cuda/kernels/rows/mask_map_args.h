/// mask_map: constants and parameters. See rows/README.md.
#pragma once

#include "cuda/kernels/rows/tile_lists_args.h"
#include "cuda/tile/expression_args.h"
#include "cuda/tile/hopper/tile_counter_args.h"

namespace tilewise::mask_map {

struct Config {
  int tile_q = 128;         ///< queries of a tile, a power of two
  int tile_k = 128;         ///< keys of a tile, 16 or a multiple of 32
  int shared_bytes = 8192;  ///< a power of two
  tile::Expressions expressions = {.score = 0, .mask = 1};

  bool operator==(const Config&) const = default;
};

/// Without the caller's list: that is not there.
struct Args : tile_lists::Args {
  // What the last block makes of the rows of all lists, or of each list: at most one of them.
  tile_lists::OrderArgs order;          ///< where it has room
  tile_lists::TransposeArgs transpose;  ///< likewise
  tile::TileCounter done;               ///< of all blocks; transpose: a word for each list
};

inline constexpr int kThreads = 512;
/// Two counts and both rows of bits; then what order_rows() takes.
constexpr long long shared_bytes(long long words) {
  const long long row = 4 * (tile_lists::kCountWords + 2 * words), order = 8 * (kThreads + 1);
  return row < order ? order : row;
}

}  // namespace tilewise::mask_map
