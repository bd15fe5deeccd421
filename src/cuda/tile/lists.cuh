/// Walks along rows of tiles of a block list.
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

/// What a tile is to a row: nothing of it is listed, all is seen, or a mask has to tell.
enum Seen : u32 { kNothing = 0, kWhole = 1, kCut = 2 };
/// A tile and what it is to each of some rows, in one word.
struct SeenTile {
  static constexpr u32 kTile = (1U << 24) - 1, kLast = 1U << 31;
  static constexpr int kSeenShift = 24;
  u32 word;

  __forceinline__ int tile() const { return static_cast<int>(word & kTile); }
  __forceinline__ u32 seen_by(int row) const { return word >> (kSeenShift + 2 * row) & 3; }
  __forceinline__ bool last() const { return (word & kLast) != 0; }
};

/// kRows rows side by side from their end on: every tile that one of them lists. The words after
/// those at hand are asked for ahead.
template <int kRows>
struct RowsWalk {
  static constexpr u32 kEnd = ~0U;
  int least = 0;  ///< tiles at least
  const unsigned* first = nullptr;
  int words = 0;  ///< of a half of a row
  int rows = 0;   ///< that there are
  int word = 0;
  unsigned left = 0;  ///< tiles of the words at hand
  unsigned whole[kRows], cut[kRows], whole_ahead[kRows], cut_ahead[kRows];

  /// Asks for what the walk begins with.
  __forceinline__ void find(const TileLists& of, int list, int tile) {
    const i64 at = static_cast<i64>(list) * of.rows + tile * kRows;
    rows = min(kRows, of.rows - tile * kRows);
    words = of.words;
    first = of.bits + at * 2 * words;
    least = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < rows) least = max(least, of.counts[2 * (at + r)] + of.counts[2 * (at + r) + 1]);
    }
    word = words;
    left = 0;
    ask();
  }
  __forceinline__ void ask() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool there = r < rows && word > 0;
      const unsigned* at = first + r * 2 * words + word - 1;
      whole_ahead[r] = there ? at[0] : 0;
      cut_ahead[r] = there ? at[words] : 0;
    }
  }
  /// The next one, or kEnd.
  __forceinline__ u32 next() {
    while (left == 0) {
      if (word == 0) return kEnd;
      --word;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        whole[r] = whole_ahead[r];
        cut[r] = cut_ahead[r];
        left |= whole[r] | cut[r];
      }
      ask();
    }
    const int bit = 31 - __clz(static_cast<int>(left));
    left ^= 1U << bit;
    u32 made = static_cast<u32>(word * 32 + bit);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const u32 seen = (whole[r] >> bit & 1) * kWhole + (cut[r] >> bit & 1) * kCut;
      made |= seen << (SeenTile::kSeenShift + 2 * r);
    }
    return made;
  }
};

}  // namespace tilewise::tile
