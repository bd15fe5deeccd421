/// The walk along a row of tiles of a block list.
#pragma once

#include "cuda/tile/copy.cuh"
#include "cuda/tile/lists_args.h"

namespace tilewise::tile {

/// A row from its end on: tiles that a mask cuts, the last one first, then those seen whole. One
/// word of bits is held at a time.
struct ListWalk {
  int listed = 0, whole = 0;  ///< tiles of the row, and those among them that come last
  const unsigned* row = nullptr;
  int words = 0;  ///< of a half of the row
  int word = 0;
  unsigned left = 0;

  __forceinline__ void start(const TileLists& of, int list, int at_row) {
    const i64 at = static_cast<i64>(list) * of.rows + at_row;
    whole = of.counts[2 * at];
    listed = whole + of.counts[2 * at + 1];
    row = of.bits + at * 2 * of.words;
    words = of.words;
    word = 2 * words;
    left = 0;
  }
  /// To those seen whole.
  __forceinline__ void pass_over_cut() {
    word = words;
    left = 0;
  }
  /// The next tile, of which there must be one.
  __forceinline__ int next() {
    while (left == 0) left = row[--word];
    const int bit = 31 - __clz(static_cast<int>(left));
    left ^= 1U << bit;
    return (word >= words ? word - words : word) * 32 + bit;
  }
};
}  // namespace tilewise::tile
