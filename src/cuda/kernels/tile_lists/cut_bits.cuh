/// tile_lists: which pairs of cut tiles are seen, by mask function, position and lengths: a bit
/// each, made once for all heads that share a list. See tile_lists/README.md.
///
/// The first block makes the order meanwhile. Of the others kCutBlocks share a row, a tile after
/// the other; a warp takes one query at a time.
#pragma once

#include "cuda/kernels/tile_lists/from_function.cuh"
#include "cuda/kernels/tile_lists/order.cuh"

namespace tilewise::tile_lists {

using namespace tile;

/// The words of tile `c` of a row: those of mask_words(), four a query.
template <Config kConfig>
__forceinline__ void write_bits(const FunctionRow<kConfig>& row, int c, int warp, unsigned* to) {
  static_assert(kConfig.tile_k == 128);
  using Function = typename FunctionRow<kConfig>::Function;
  constexpr int kWords = 4;
  const int lane = row.lane, first_key = c * kConfig.tile_k;
  // Bit `lane` of word n is this key's.
  const auto key = [&](int n) { return first_key + 8 * (lane / 2) + 2 * n + lane % 2; };
  const auto key_inside = [&](int n) { return min(key(n), row.of.keys - 1); };
  typename Function::Column columns[kWords];
#pragma unroll
  for (int n = 0; n < kWords; ++n)
    columns[n] = Function::column(row.place, row.uniform, key_inside(n), row.captures);
#pragma unroll 1
  for (int r = warp; r < kConfig.tile_q; r += kOrderThreads / 32) {
    const int i = row.query_at(r);
    const typename Function::Row part = row.row_part(r);
    unsigned mine = 0;
#pragma unroll
    for (int n = 0; n < kWords; ++n) {
      const int j = key_inside(n), d = i - j;
      const typename Function::Diagonal diagonal =
          Function::diagonal(row.place, row.uniform, d, static_cast<float>(d), row.captures);
      const bool visible =
          Function::value(row.place, row.uniform, part, columns[n], diagonal, i, j, row.captures) &&
          i + row.of.low <= j && j < i + row.of.high && key(n) < row.of.keys;
      const unsigned word = __ballot_sync(~0U, visible);
      if (lane == n) mine = word;
    }
    if (lane < kWords) to[r * kWords + lane] = mine;
  }
}

template <Config kConfig>
__forceinline__ void cut_bits(const Expressed<CutBitsArgs>& expressed) {
  const CutBitsArgs& args = expressed.args;
  let_next_start();
  if (is_taken(args.of.taken)) return;
  if (blockIdx.x == 0) {
    order<kConfig>(args.order);
    return;
  }
  const int at = (static_cast<int>(blockIdx.x) - 1) / kCutBlocks;
  const int part = static_cast<int>(blockIdx.x) - 1 - at * kCutBlocks;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  wait_for_previous();  // for the rows
  const int end = min(args.of.counts[2 * static_cast<i64>(at) + 1], args.most);
  if (part >= end) return;
  const FunctionRow<kConfig> row(args.of, expressed.captures,
                                 {at / args.of.rows, at % args.of.rows}, lane);
  const unsigned* bits = args.of.bits + (2 * static_cast<i64>(at) + 1) * args.of.words;
  int rank = 0;
  for (int word = 0; rank < end; ++word) {
    for (unsigned left = bits[word]; left != 0 && rank < end; left &= left - 1, ++rank) {
      if (rank % kCutBlocks != part) continue;
      const int c = 32 * word + 31 - __clz(static_cast<int>(left & (~left + 1)));
      write_bits(row, c, warp,
                 args.shown + (static_cast<i64>(at) * args.most + rank) * (4 * kConfig.tile_q));
    }
  }
}

}  // namespace tilewise::tile_lists
