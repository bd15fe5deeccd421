/// tile_lists: rows of tiles the other way round.
#pragma once

#include "cuda/kernels/tile_lists/args.h"
#include "cuda/tile/ptx/copy.cuh"

namespace tilewise::tile_lists {

using namespace tile;

/// One block takes 32 tiles of keys of a list, word after word of the rows of tiles that see them;
/// one warp those seen whole, one those that a mask cuts. Nothing is added in an order that could
/// differ.
template <Config kConfig>
__forceinline__ void transpose(const TransposeArgs& args) {
  const int lane = static_cast<int>(threadIdx.x) % 32, half = static_cast<int>(threadIdx.x) / 32;
  const int list = static_cast<int>(blockIdx.x) / args.words;
  const int word = static_cast<int>(blockIdx.x) - list * args.words;
  const int row = word * 32 + lane;  // of what is made
  const unsigned* from =
      args.bits + static_cast<i64>(list) * args.rows * 2 * args.words + half * args.words + word;
  const i64 to = static_cast<i64>(list) * args.to_rows + row;
  let_next_start();
  wait_for_previous();  // for the rows
  int count = 0;
  for (int w = 0; w < args.to_words; ++w) {
    const int at = w * 32 + lane;
    const unsigned bits = at < args.rows ? from[static_cast<i64>(at) * 2 * args.words] : 0;
    unsigned mine = 0, placed = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const unsigned column = __ballot_sync(~0U, (bits >> i & 1) != 0);
      if (lane == i) mine = column;
    }
    if constexpr (kConfig.tells_placed) {
      // What has both bits counts as cut.
      const bool has = half == 0 && at < args.rows;
      const unsigned cut = has ? from[(static_cast<i64>(at) * 2 + 1) * args.words] : 0;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const unsigned column = __ballot_sync(~0U, (bits & cut) >> i & 1);
        if (lane == i) placed = column;
      }
    }
    if (row < args.to_rows) args.to_bits[(to * 2 + half) * args.to_words + w] = mine;
    count += __popc(mine ^ placed);
  }
  if (row < args.to_rows) args.to_counts[to * 2 + half] = count;
}

}  // namespace tilewise::tile_lists
