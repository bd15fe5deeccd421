/// Walks along rows of tiles of a block list.
#pragma once

#include "cuda/tile/lists_args.h"
#include "cuda/tile/ptx/copy.cuh"

namespace tilewise::tile {

/// A row from its end on: tiles that a mask cuts, the last one first, then those seen whole. The
/// next word of bits is asked for while the one at hand is walked: a load takes half as long as a
/// tile. kTells: of a map that tells which tiles position and lengths alone cut.
template <bool kTells = false>
struct ListWalk {
  static constexpr int kPlaced = 1 << 30;  ///< beside the number of such a tile

  int cut = 0, whole = 0;  ///< tiles of the row; as it is walked, `cut` is what is left of them
  const unsigned* row = nullptr;
  int words = 0;  ///< of a half of the row
  int word = 0;
  unsigned left = 0, ahead = 0;
  unsigned others = 0;  ///< kTells: the same tiles in the other half

  __forceinline__ int listed() const { return cut + whole; }
  /// The tile that next() has named.
  static __forceinline__ int number(int named) { return kTells ? named & ~kPlaced : named; }
  static __forceinline__ bool is_placed(int named) { return kTells && (named & kPlaced) != 0; }
  /// Asks for what the walk begins with.
  __forceinline__ void find(const TileLists& of, int list, int at_row, int /*lane*/ = 0) {
    const i64 at = static_cast<i64>(list) * of.rows + at_row;
    whole = of.counts[2 * at];
    cut = of.counts[2 * at + 1];
    row = of.bits + at * 2 * of.words;
    words = of.words;
    go_to(2 * words - 1);
  }
  __forceinline__ void find_none() { cut = whole = 0; }
  __forceinline__ void go_to(int at) {
    word = at;
    left = row[at];
    ahead = row[max(at - 1, 0)];
    look_beside();
  }
  /// Among those seen whole there are tiles that have come already.
  __forceinline__ void look_beside() {
    if constexpr (!kTells) return;
    others = row[word >= words ? word - words : word + words];
    if (word < words) left &= ~others;
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
      if (left != 0) look_beside();
    }
    const int bit = 31 - __clz(static_cast<int>(left));
    left ^= 1U << bit;
    const int tile = (word >= words ? word - words : word) * 32 + bit;
    if constexpr (!kTells) return tile;
    return tile | (word >= words && (others >> bit & 1) != 0 ? kPlaced : 0);
  }
};

/// What a tile is to a row: nothing of it is listed, all is seen, or a mask has to tell.
enum Seen : u32 { kNothing = 0, kWhole = 1, kCut = 2 };
/// A tile and what it is to each of up to 16 rows.
struct SeenTile {
  static constexpr u32 kLast = 1U << 31, kEnd = ~0U;
  static constexpr int kCutShift = 16;
  u32 word = kEnd;  ///< the tile; kLast: of the row
  u32 rows = 0;     ///< a bit for each that sees it whole, then one for each that a mask cuts

  __forceinline__ bool there() const { return word != kEnd; }
  __forceinline__ int tile() const { return static_cast<int>(word & ~kLast); }
  __forceinline__ bool last() const { return (word & kLast) != 0; }
  __forceinline__ u32 seen_by(int row) const {
    return (rows >> row & 1) * kWhole + (rows >> (kCutShift + row) & 1) * kCut;
  }
};

/// kRows rows side by side from their end on, by a warp: lane r has row r, and all of them come to
/// every tile that one of them lists. The words after those at hand are asked for ahead.
template <int kRows>
struct RowsWalk {
  static_assert(kRows <= SeenTile::kCutShift);
  const unsigned* mine = nullptr;  ///< of the lane's row
  int words = 0;                   ///< of a half of a row; none where the lane has no row
  int counted = 0;                 ///< tiles of the lane's row
  int word = 0;
  unsigned left = 0;  ///< tiles of the words at hand
  unsigned whole = 0, cut = 0, whole_ahead = 0, cut_ahead = 0;

  /// Asks for what the walk begins with.
  __forceinline__ void find(const TileLists& of, int list, int tile, int lane) {
    const int row = tile * kRows + lane;
    const bool there = lane < kRows && row < of.rows;
    const i64 at = static_cast<i64>(list) * of.rows + (there ? row : 0);
    mine = of.bits + at * 2 * of.words;
    words = there ? of.words : 0;
    counted = there ? of.counts[2 * at] + of.counts[2 * at + 1] : 0;
    word = of.words;
    left = 0;
    ask();
  }
  __forceinline__ void find_none() {
    words = counted = word = 0;
    left = 0;
  }
  /// Tiles at least.
  __forceinline__ int least() const {
    int most = counted;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(~0U, most, step));
    return most;
  }
  __forceinline__ void ask() {
    const bool there = words > 0 && word > 0;
    whole_ahead = there ? mine[word - 1] : 0;
    cut_ahead = there ? mine[words + word - 1] : 0;
  }
  /// The next one; none of it is kLast.
  __forceinline__ SeenTile next() {
    while (left == 0) {
      if (word == 0) return {};
      --word;
      whole = whole_ahead;
      cut = cut_ahead;
      int any = static_cast<int>(whole | cut);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) any |= __shfl_xor_sync(~0U, any, step);
      left = static_cast<unsigned>(any);
      ask();
    }
    const int bit = 31 - __clz(static_cast<int>(left));
    left ^= 1U << bit;
    const u32 seen_whole = __ballot_sync(~0U, (whole >> bit & 1) != 0);
    const u32 seen_cut = __ballot_sync(~0U, (cut >> bit & 1) != 0);
    return {static_cast<u32>(word * 32 + bit), seen_whole | seen_cut << SeenTile::kCutShift};
  }
};

}  // namespace tilewise::tile
