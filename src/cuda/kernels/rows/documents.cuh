/// documents: row blocks of documents that lie one after the other in sequences. A mask that shows
/// a row the keys of its own document alone is then what packed sequences are.
///
/// Each row has the number of its document. Numbers of a sequence may not fall, of the only one but
/// once, below the first number: so no document comes twice. One block. Its warps set a bit for
/// each row where a document begins. Then threads take words of bits, and then documents, side by
/// side; what the threads before have counted says where each writes.
#pragma once

#include "cuda/kernels/rows/documents_args.h"
#include "cuda/tile/ptx/copy.cuh"

namespace tilewise::documents {

using namespace tile;

template <Config kConfig>
struct Finder {
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kAtOnce = 8;  ///< rows of a lane whose loads are in flight together
  static_assert(kWarps == 32);
  const Args& args;
  u32* const begins;  ///< a bit for each row
  int* const starts;  ///< rows where documents begin, and behind the last one the end
  int* const sums;    ///< of each warp
  int* const falls;   ///< of each warp
  const bool only;    ///< there is one sequence
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;

  __forceinline__ Finder(const Args& a, int* memory)
      : args(a),
        begins(reinterpret_cast<u32*>(memory)),
        starts(memory + kMostRows / 32),
        sums(starts + kMost + 1),
        falls(sums + kWarps),
        only(a.rows == a.length) {}

  __forceinline__ int entry_of(int row) const { return only ? 0 : row / args.length; }
  __forceinline__ int id(int row) const {
    const int entry = entry_of(row);
    const i64 at = entry * args.stride_b + (row - entry * args.length) * args.stride_s;
    if constexpr (kConfig.wide)
      return static_cast<int>(__ldg(static_cast<const i64*>(args.ids) + at));
    return __ldg(static_cast<const int*>(args.ids) + at);
  }
  __forceinline__ bool begins_sequence(int row) const {
    return row == 0 || (!only && row % args.length == 0);
  }
  /// The bits of the warp's rows, which lie side by side, and how often numbers fall there.
  __forceinline__ void mark() const {
    const int each = (args.rows + kThreads - 1) / kThreads * 32;
    const int first = min(warp * each, args.rows), end = min(first + each, args.rows);
    int fallen = 0, last = first > 0 && first < end ? id(first - 1) : 0;
#pragma unroll 1
    for (int begin = first; begin < end; begin += 32 * kAtOnce) {
      int ids[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) ids[k] = id(min(begin + 32 * k + lane, args.rows - 1));
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int row = begin + 32 * k + lane;
        const int left = __shfl_sync(~0U, ids[k], max(lane - 1, 0));
        const int before = lane == 0 ? last : left;
        last = __shfl_sync(~0U, ids[k], 31);
        const bool there = row < end, new_sequence = begins_sequence(row);
        const u32 word = __ballot_sync(~0U, there && (new_sequence || ids[k] != before));
        fallen += __popc(__ballot_sync(~0U, there && !new_sequence && ids[k] < before));
        if (lane == 0 && row < end) begins[row / 32] = word;
      }
    }
    if (lane == 0) falls[warp] = fallen;
    __syncthreads();  // the bits are there
  }
  /// The sum of the lanes up to this one.
  __forceinline__ int sum_up_to(int x) const {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_sync(~0U, x, max(lane - step, 0));
      x += lane >= step ? other : 0;
    }
    return x;
  }
  /// The sum of the threads before this one, and of all.
  __forceinline__ int sum_before(int mine, int& all) const {
    const int up_to = sum_up_to(mine);
    if (lane == 31) sums[warp] = up_to;
    __syncthreads();  // the sums of all warps are there
    const int warps = sum_up_to(sums[lane]);
    all = __shfl_sync(~0U, warps, 31);
    const int before = __shfl_sync(~0U, warps, max(warp - 1, 0));
    return (warp == 0 ? 0 : before) + up_to - mine;
  }
  /// Whether no document comes twice.
  __forceinline__ bool is_in_turn() const {
    const int all = __shfl_sync(~0U, sum_up_to(falls[lane]), 31);
    return all == 0 || (all == 1 && only && id(args.rows - 1) < id(0));
  }

  /// Where documents begin; how many, or more than `most` where these are too many.
  __forceinline__ int place_documents() const {
    const int words = (args.rows + 31) / 32, each = (words + kThreads - 1) / kThreads;
    const int from = min(thread * each, words), to = min(from + each, words);
    int mine = 0, all = 0;
    for (int w = from; w < to; ++w) mine += __popc(begins[w]);
    int at = sum_before(mine, all);
    if (all > args.most) return all;
    for (int w = from; w < to; ++w) {
      for (u32 left = begins[w]; left != 0; left &= left - 1)
        starts[at++] = 32 * w + 31 - __clz(static_cast<int>(left & (~left + 1)));
    }
    if (thread == 0) starts[all] = args.rows;
    __syncthreads();  // all documents are there, and the sums have been read
    return all;
  }
  __forceinline__ int blocks_of(int document) const {
    return (starts[document + 1] - starts[document] + kConfig.rows - 1) / kConfig.rows;
  }
  /// Their row blocks; how many, 0 for too many.
  __forceinline__ int place_blocks(int documents) const {
    const int each = (documents + kThreads - 1) / kThreads;
    const int from = min(thread * each, documents), to = min(from + each, documents);
    int mine = 0, all = 0;
    for (int d = from; d < to; ++d) mine += blocks_of(d);
    int at = sum_before(mine, all);
    if (all > args.most) return 0;
    for (int d = from; d < to; ++d) {
      const int entry = entry_of(starts[d]), from_row = entry * args.length;
      const auto begin = static_cast<u32>(starts[d] - from_row);
      const auto behind = static_cast<u32>(starts[d + 1] - from_row);
      const int blocks = blocks_of(d);
      for (int n = 0; n < blocks; ++n)
        store_global_16(args.blocks + 4 * at++,
                        {static_cast<u32>(n), begin, behind, static_cast<u32>(entry)});
    }
    return all;
  }
};

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Finder<kConfig> finder(args, reinterpret_cast<int*>(memory));
  let_next_start();
  wait_for_previous();  // what reads the blocks of the call before is done
  finder.mark();
  int blocks = 0;
  if (finder.is_in_turn()) {
    const int documents = finder.place_documents();
    if (documents <= args.most) blocks = finder.place_blocks(documents);
  }
  if (threadIdx.x == 0) *args.count = blocks;
}

}  // namespace tilewise::documents
