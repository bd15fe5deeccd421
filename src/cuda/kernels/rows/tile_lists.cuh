/// tile_lists: from a caller's block list to rows of tiles, each a bit: seen whole, seen through a
/// mask, or not at all. See rows/tile_lists.md.
///
/// One block takes one row of tiles of one list. It sets a bit for every listed block in shared
/// memory, where neither the order of the entries nor repeated ones can be told any more. An index
/// that names no block is passed over. Then each thread looks at one tile after another.
#pragma once

#include "cuda/kernels/rows/tile_lists_args.h"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/lists_args.h"
#include "cuda/tile/sequences.cuh"

namespace tilewise::tile_lists {

using namespace tile;

/// Lengths of an entry, and which pairs its positions show.
struct Lengths {
  int queries, keys, low, high;
};
__forceinline__ Lengths lengths_of(const Args& args, int batch) {
  Lengths of{args.seq_q, args.seq_k, args.low, args.high};
  const bool packed = args.queries.offsets != nullptr;
  if (packed) of.queries = min(sequence_at(args.queries, batch).length, args.seq_q);
  if (args.keys.offsets != nullptr) {
    of.keys = min(sequence_at(args.keys, batch).length, args.seq_k);
  } else if (args.key_lengths != nullptr) {
    of.keys = min(max(args.key_lengths[batch * args.key_lengths_b], 0), args.seq_k);
  }
  if (packed || args.key_lengths != nullptr) {
    of.low += of.keys - of.queries;
    of.high = min(of.high + of.keys - of.queries, args.top);
  }
  return of;
}

template <Config kConfig>
struct Row {
  const Args& args;
  unsigned* const listed;  ///< bits of key blocks, block_words for each row of blocks
  unsigned* const full;
  int list, row, first_block, blocks;  ///< rows of blocks of the list: first, how many
  int queries, keys, low, high;

  __forceinline__ Row(const Args& a, unsigned* memory, int list_, int row_)
      : args(a),
        listed(memory),
        full(memory + block_rows(kConfig.tile_q, a.shift_q) * a.block_words),
        list(list_),
        row(row_) {
    const int batch = list / args.list_heads;
    first_block = row * kConfig.tile_q >> args.shift_q;
    blocks = min(block_rows(kConfig.tile_q, args.shift_q), args.query_blocks - first_block);
    const Lengths of = lengths_of(args, batch);
    queries = of.queries;
    keys = of.keys;
    low = of.low;
    high = of.high;
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
    const int last_row = min(first_row + kConfig.tile_q, queries) - 1;
    seen = whole = false;
    if (first_row > last_row || first_key >= keys || last_row + high <= first_key ||
        first_row + low >= min(end_key, keys))
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

/// Rows with many tiles first, so that none of them begins when the others are nearly done: class
/// by class, in each class in the order that they have. One block; each thread takes rows that lie
/// side by side, and a sum over the threads before it says where they go. The counts of all classes
/// share a word.
template <Config kConfig>
__forceinline__ void order(const OrderArgs& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr int kBits = OrderArgs::kClassBits;
  constexpr u64 kMask = (1ULL << kBits) - 1;
  u64* before = reinterpret_cast<u64*>(memory);
  u64* all = before + kOrderThreads;
  const int thread = static_cast<int>(threadIdx.x);
  const int each = (args.entries + kOrderThreads - 1) / kOrderThreads;
  const int first = min(thread * each, args.entries), end = min(first + each, args.entries);
  let_next_start();
  if (thread == 0) *all = 0;
  __syncthreads();      // the sum is 0
  wait_for_previous();  // for the counts
  const auto tiles = [&](int i) {
    const int list = i / args.tiles, row = (i - list * args.tiles) * args.rows_of_tile;
    const int end = min(row + args.rows_of_tile, args.rows);
    u64 sum = 0;
    for (int r = row; r < end; ++r) {
      const int* counts = args.counts + 2 * (static_cast<i64>(list) * args.rows + r);
      sum += static_cast<u64>(counts[0]) + static_cast<u64>(counts[1]);
    }
    return sum;
  };
  u64 mine = 0;
  for (int i = first; i < end; ++i) mine += tiles(i);
  atomicAdd(all, mine);
  __syncthreads();  // all have added
  const u64 total = *all;
  const auto class_of = [&](int i) {
    const u64 n = tiles(i) * static_cast<u64>(args.entries);
    return n >= 3 * total ? 0 : 2 * n >= 3 * total ? 1 : 2;
  };
  mine = 0;
  for (int i = first; i < end; ++i) mine += 1ULL << (kBits * class_of(i));
  before[thread] = mine;
  for (int step = 1; step < kOrderThreads; step *= 2) {
    __syncthreads();  // the sums so far are there
    const u64 other = thread >= step ? before[thread - step] : 0;
    __syncthreads();  // and have been read
    before[thread] += other;
  }
  __syncthreads();  // the sums are complete
  const u64 counts = before[kOrderThreads - 1];
  u64 at = before[thread] - mine;
  // Where each class begins is added in its own part of the word.
  at += (counts & kMask) << kBits;
  at += ((counts & kMask) + (counts >> kBits & kMask)) << (2 * kBits);
  for (int i = first; i < end; ++i) {
    const int shift = kBits * class_of(i);
    args.order[at >> shift & kMask] = i;
    at += 1ULL << shift;
  }
  if (thread < kListClasses)
    args.classes[thread] = static_cast<int>(counts >> (kBits * thread) & kMask);
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
