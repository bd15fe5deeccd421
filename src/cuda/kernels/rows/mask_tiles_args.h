/// mask_tiles: constants and parameters. See rows/README.md.
#pragma once

#include "cuda/kernels/rows/tile_lists_args.h"
#include "cuda/tile/options_args.h"

namespace tilewise::mask_tiles {

struct Config {
  int tile_q = 128;         ///< queries of a tile
  int tile_k = 128;         ///< keys of a tile
  bool by_keys = false;     ///< rows of tiles are of keys, and so are the mask's lines
  int shared_bytes = 1024;  ///< a power of two

  bool operator==(const Config&) const = default;
};

struct Args {
  /// Without the caller's list. Rows, words, bits and counts are those of the rows at hand.
  tile_lists::Args of;
  tile::MaskBits mask;
  bool listed = false;  ///< the rows are there already, and lose what the mask hides
};

inline constexpr int kThreads = 512;
/// Two counts, then what each tile shows and hides.
constexpr long long shared_bytes(long long words) {
  return 4 * (tile_lists::kCountWords + 2 * words);
}

}  // namespace tilewise::mask_tiles
