/// The walk along a row of tiles of a block list.
#pragma once

#include "cuda/tile/copy.cuh"
#include "cuda/tile/lists_args.h"

namespace tilewise::tile {

/// A row from its end on: tiles that a mask cuts, the last one first, then those seen whole. The
/// next word of bits is asked for while the one at hand is walked: a load takes half as long as a
/// tile.
struct ListWalk {
  int cut = 0, whole = 0;  ///< tiles of the row; as it is walked, `cut` is what is left of them
  const unsigned* row = nullptr;
  int words = 0;  ///< of a half of the row
  int word = 0;
  unsigned left = 0, ahead = 0;

  __forceinline__ int listed() const { return cut + whole; }
  /// Asks for what the walk begins with.
  __forceinline__ void find(const TileLists& of, int list, int at_row) {
    const i64 at = static_cast<i64>(list) * of.rows + at_row;
    whole = of.counts[2 * at];
    cut = of.counts[2 * at + 1];
    row = of.bits + at * 2 * of.words;
    words = of.words;
    go_to(2 * words - 1);
  }
  __forceinline__ void go_to(int at) {
    word = at;
    left = row[at];
    ahead = row[max(at - 1, 0)];
  }
  /// To those seen whole.
  __forceinline__ void pass_over_cut() {
    cut = -1;
    go_to(words - 1);
  }
  /// The next tile, of which there must be one.
  __forceinline__ int next() {
    if (cut == 0) pass_over_cut();
    --cut;
    while (left == 0) {
      left = ahead;
      --word;
      ahead = row[max(word - 1, 0)];
    }
    const int bit = 31 - __clz(static_cast<int>(left));
    left ^= 1U << bit;
    return (word >= words ? word - words : word) * 32 + bit;
  }
};

}  // namespace tilewise::tile
