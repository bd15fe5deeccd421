/// tile_lists: from a caller's block list to rows of tiles, each a bit: seen whole, seen through a
/// mask, or not at all. See rows/tile_lists.md.
///
/// One block takes one row of tiles of one list. It sets a bit for every listed block in shared
/// memory, where neither the order of the entries nor repeated ones can be told any more. An index
/// that names no block is passed over. Then each thread looks at one tile after another.
#pragma once

#include "cuda/kernels/rows/tile_lists_args.h"
#include "cuda/tile/copy.cuh"

namespace tilewise::tile_lists {

using namespace tile;

template <Config kConfig>
struct Row {
  const Args& args;
  unsigned* const listed;  ///< bits of key blocks, block_words for each row of blocks
  unsigned* const full;
  int list, row, first_block, blocks;  ///< rows of blocks of the list: first, how many
  int keys, low, high;

  __forceinline__ Row(const Args& a, unsigned* memory, int list_, int row_)
      : args(a),
        listed(memory),
        full(memory + block_rows(kConfig.tile_q, a.shift_q) * a.block_words),
        list(list_),
        row(row_) {
    const int batch = list / args.list_heads;
    first_block = row * kConfig.tile_q >> args.shift_q;
    blocks = min(block_rows(kConfig.tile_q, args.shift_q), args.query_blocks - first_block);
    keys = args.seq_k;
    low = args.low;
    high = args.high;
    if (args.key_lengths != nullptr) {
      keys = min(max(args.key_lengths[batch * args.key_lengths_b], 0), args.seq_k);
      low += keys - args.seq_q;
      high = min(high + keys - args.seq_q, args.top);
    }
  }

  /// The bits of what the caller lists.
  __forceinline__ void read_list(int thread) const {
    const int batch = list / args.list_heads, head = list - batch * args.list_heads;
    const int* offsets = args.row_offsets + batch * args.offsets_b + head * args.offsets_h;
    for (int b = 0; b < blocks; ++b) {
      const int begin = max(offsets[(first_block + b) * args.offsets_r], 0);
      const int end = min(offsets[(first_block + b + 1) * args.offsets_r], args.pairs);
      for (int i = begin + thread; i < end; i += kThreads) {
        const int block = args.block_index[i * args.index_stride];
        if (block < 0 || block >= args.key_blocks) continue;
        const int word = b * args.block_words + block / 32;
        const unsigned bit = 1U << (block % 32);
        atomicOr(listed + word, bit);
        if (args.block_full != nullptr && args.block_full[i * args.full_stride] != 0)
          atomicOr(full + word, bit);
      }
    }
  }

  /// Whether tile `c` is seen at all, and whether without a mask.
  __forceinline__ void look_at(int c, bool& seen, bool& whole) const {
    const int first_key = c * kConfig.tile_k, end_key = first_key + kConfig.tile_k;
    const int first_row = row * kConfig.tile_q;
    const int last_row = min(first_row + kConfig.tile_q, args.seq_q) - 1;
    seen = whole = false;
    if (first_key >= keys || last_row + high <= first_key || first_row + low >= min(end_key, keys))
      return;
    const bool uncut = first_row + high >= end_key && last_row + low <= first_key;
    const int first = first_key >> args.shift_k;
    const int last = min((end_key - 1) >> args.shift_k, (keys - 1) >> args.shift_k);
    bool all = true, plain = true;
    for (int b = 0; b < blocks; ++b) {
      for (int block = first; block <= last; ++block) {
        const int word = b * args.block_words + block / 32;
        const bool here = (listed[word] >> (block % 32) & 1) != 0;
        seen |= here;
        all &= here;
        plain &= (full[word] >> (block % 32) & 1) != 0;
      }
    }
    whole = all && (plain || (uncut && !args.function)) && end_key <= keys;
  }
};

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int list = static_cast<int>(blockIdx.x) / args.rows;
  unsigned* counts = reinterpret_cast<unsigned*>(memory);
  const Row<kConfig> row(args, counts + kCountWords, list,
                         static_cast<int>(blockIdx.x) - list * args.rows);
  let_next_start();
  const int all = 2 * block_rows(kConfig.tile_q, args.shift_q) * args.block_words;
  for (int i = thread; i < kCountWords + all; i += kThreads) counts[i] = 0;
  __syncthreads();  // all bits are 0
  row.read_list(thread);
  __syncthreads();  // and those of the list are set
  const i64 at = static_cast<i64>(list) * args.rows + row.row;
  unsigned* bits = args.bits + at * 2 * args.words;
  unsigned whole_count = 0, cut_count = 0;
  for (int word = thread / 32; word < args.words; word += kThreads / 32) {
    bool seen, whole;
    row.look_at(word * 32 + lane, seen, whole);
    const unsigned in_whole = __ballot_sync(~0U, whole);
    const unsigned in_cut = __ballot_sync(~0U, seen && !whole);
    if (lane == 0) {
      bits[word] = in_whole;
      bits[args.words + word] = in_cut;
      whole_count += __popc(in_whole);
      cut_count += __popc(in_cut);
    }
  }
  if (lane == 0) {
    atomicAdd(counts, whole_count);
    atomicAdd(counts + 1, cut_count);
  }
  if constexpr (kConfig.parts) {
    unsigned* to = args.listed + (static_cast<i64>(list) * args.query_blocks + row.first_block) *
                                     args.block_words;
    // Where a block has the rows of several tiles each of them writes the same.
    for (int i = thread; i < row.blocks * args.block_words; i += kThreads) to[i] = row.listed[i];
  }
  __syncthreads();  // all warps have counted
  if (thread < 2) args.counts[at * 2 + thread] = static_cast<int>(counts[thread]);
}

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
    unsigned mine = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const unsigned column = __ballot_sync(~0U, (bits >> i & 1) != 0);
      if (lane == i) mine = column;
    }
    if (row < args.to_rows) args.to_bits[(to * 2 + half) * args.to_words + w] = mine;
    count += __popc(mine);
  }
  if (row < args.to_rows) args.to_counts[to * 2 + half] = count;
}

}  // namespace tilewise::tile_lists
