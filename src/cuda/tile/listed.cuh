/// Block lists in kernels whose warps hold score fragments of mma.sync: which tile comes next, what
/// of a tile is not listed.
#pragma once

#include "cuda/tile/lists_args.h"
#include "cuda/tile/math.cuh"

namespace tilewise::tile {

/// A place in a row of tiles, which is walked from its end on: tiles that a mask cuts, then those
/// seen whole. NOTE: words are read anew at each step, since registers are what these kernels lack.
struct ListCursor {
  const unsigned* row;
  int words;  ///< of a half of the row
  int at;     ///< bit of the row

  __forceinline__ ListCursor(const TileLists& of, int list, int at_row)
      : row(of.bits + (static_cast<i64>(list) * of.rows + at_row) * 2 * of.words),
        words(of.words),
        at(64 * of.words) {}
  /// To the next tile; false when there is none.
  __forceinline__ bool go() {
    int word = at >> 5;
    unsigned left = at % 32 == 0 ? 0 : row[word] & ((1U << (at % 32)) - 1);
    while (left == 0) {
      if (--word < 0) return false;
      left = row[word];
    }
    at = 32 * word + 31 - __clz(static_cast<int>(left));
    return true;
  }
  __forceinline__ bool cut() const { return at >= 32 * words; }
  __forceinline__ int tile() const { return cut() ? at - 32 * words : at; }
};

/// Whether tile `tile` of a row has a listed pair.
__forceinline__ bool is_listed(const TileLists& of, int list, int row, int tile) {
  const unsigned* words = of.bits + (static_cast<i64>(list) * of.rows + row) * 2 * of.words;
  return ((words[tile / 32] | words[of.words + tile / 32]) >> (tile % 32) & 1U) != 0;
}

/// (F4) Pairs that a list does not have become -inf. A fragment of rows from `query` on and keys
/// from `key` on, transposed: of keys and queries. Blocks have multiples of 16 rows and keys, as
/// the corner has; the fragment's keys lie in one word of bits.
template <bool kTransposed, int kM, int kN>
__forceinline__ void hide_unlisted(Acc (&S)[kM][kN], const TileLists& of, int list, int query,
                                   int key) {
  constexpr int kRows = kTransposed ? kN / 2 : kM, kKeys = kTransposed ? kM : kN / 2;
  static_assert(kKeys <= 8);
  const int first = key >> of.shift_k;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    // Rows past the end keep nothing: any block serves.
    const int block = min((query + 16 * r) >> of.shift_q, of.query_blocks - 1);
    const i64 at = (static_cast<i64>(list) * of.query_blocks + block) * of.block_words;
    const unsigned bits = of.listed[at + first / 32];
#pragma unroll
    for (int c = 0; c < kKeys; ++c) {
      if ((bits >> ((key + 16 * c) >> of.shift_k) % 32 & 1U) != 0) continue;
      const int m = kTransposed ? c : r, n = 2 * (kTransposed ? r : c);
#pragma unroll
      for (int e = 0; e < 4; ++e) S[m][n][e] = S[m][n + 1][e] = -infinity();
    }
  }
}

}  // namespace tilewise::tile
