/// From a block's index to its tile, and from a tile to the keys or queries that it needs.
#pragma once

#include "cuda/tile/math.cuh"

namespace tilewise::tile {

struct TileIndex {
  int block = 0;  ///< row block
  int split = 0;
  int bh = 0;  ///< batch * heads + head
};

__forceinline__ TileIndex tile_index(const TileOrder& order, unsigned index) {
  const unsigned per_head = order.blocks * order.splits;
  const unsigned first = index / (order.section * per_head) * order.section;
  const unsigned rest = index - first * per_head;
  const unsigned heads = min(order.section, order.heads - first);
  const unsigned per_block = heads * order.splits;
  const unsigned block = rest / per_block;
  const unsigned in_block = rest - block * per_block;
  TileIndex tile;
  tile.block = static_cast<int>(order.last_first ? order.blocks - 1 - block : block);
  tile.bh = static_cast<int>(first + in_block / order.splits);
  tile.split = static_cast<int>(in_block % order.splits);
  return tile;
}

/// Keys of a batch entry.
template <class Args>
__forceinline__ int keys_of(const Args& args, int batch) {
  if (args.key_lengths == nullptr) return args.seq_k;
  return max(0, min(args.seq_k, args.key_lengths[batch * args.key_lengths_b]));
}

/// Row i sees the keys j with i + low <= j < min(i + high, seq_k).
struct Diagonals {
  int low = -Positions::kFar, high = Positions::kFar;

  __forceinline__ Diagonals(const Positions& p, int seq_q, int seq_k) {
    const i64 shift = static_cast<i64>(seq_k) - seq_q;
    i64 above = shift + p.right + 1;
    if (p.top_left && above > 1) above = 1;
    const i64 far = Positions::kFar;
    high = static_cast<int>(above > far ? far : above < -far ? -far : above);
    const i64 below = shift - p.left;
    low = static_cast<int>(below > far ? far : below < -far ? -far : below);
  }
};

/// Half-open ranges of blocks: those that hold a visible pair, and inside them those without a
/// hidden one.
struct BlockRange {
  int begin = 0, end = 0, full_begin = 0, full_end = 0;

  /// Clips to blocks [from, to).
  __forceinline__ void clip(int from, int to) {
    begin = max(begin, from);
    end = max(begin, min(end, to));
    settle();
  }
  __forceinline__ void settle() {
    full_begin = min(max(full_begin, begin), end);
    full_end = min(max(full_end, full_begin), end);
  }
};

/// Blocks of kBlock keys for rows row .. row_end-1.
template <int kBlock>
__forceinline__ BlockRange key_blocks(const Diagonals& d, int row, int row_end, int seq_k) {
  BlockRange r;
  const int first = max(0, row + d.low), last = min(seq_k, row_end - 1 + d.high);
  if (last <= first) return r;
  r.begin = first / kBlock;
  r.end = (last + kBlock - 1) / kBlock;
  r.full_begin = (max(0, row_end - 1 + d.low) + kBlock - 1) / kBlock;
  r.full_end = max(0, min(seq_k, row + d.high)) / kBlock;
  r.settle();
  return r;
}

/// Blocks of kBlock queries for keys key .. key_end-1: row i sees key j iff j - high < i <= j -
/// low.
template <int kBlock>
__forceinline__ BlockRange query_blocks(const Diagonals& d, int key, int key_end, int seq_q) {
  BlockRange r;
  const int first = max(0, key - d.high + 1), last = min(seq_q, key_end - d.low);
  if (last <= first) return r;
  r.begin = first / kBlock;
  r.end = (last + kBlock - 1) / kBlock;
  r.full_begin = (max(0, key_end - d.high) + kBlock - 1) / kBlock;
  r.full_end = max(0, min(seq_q, key - d.low + 1)) / kBlock;
  r.settle();
  return r;
}

}  // namespace tilewise::tile
