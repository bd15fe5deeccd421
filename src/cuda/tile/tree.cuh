/// A tree of speculative tokens: which of the last keys, one for each query, a query sees.
#pragma once

#include "cuda/tile/options_args.h"
#include "cuda/tile/ptx/copy.cuh"

namespace tilewise::tile {

/// The thread's of kKeys keys, those at 0, 1, 8, 9, 16, ... from the tree's key `first` on: a bit
/// each. Keys before the tree (< 0) are seen, those behind its words are not.
template <int kKeys>
__forceinline__ u32 tree_bits(const TreeBits& tree, int batch, int query, int first) {
  const u32* row = tree.words + batch * tree.stride_b + query * tree.stride_q;
  const auto word = [&](int w) {
    return w < 0 ? ~0U : w < tree.count ? __ldg(row + w * tree.stride_w) : 0U;
  };
  const int from = first >> 5;
  u32 low = word(from), bits = 0;
#pragma unroll
  for (int n = 0; n < (kKeys + 31) / 32; ++n) {
    const u32 high = word(from + n + 1);
    // The two lowest bits of each byte, side by side.
    u32 x = __funnelshift_r(low, high, static_cast<u32>(first & 31)) & 0x03030303U;
    x |= x >> 6;
    bits |= ((x | x >> 12) & 0xffU) << (8 * n);
    low = high;
  }
  return bits;
}

}  // namespace tilewise::tile
