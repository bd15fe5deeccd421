/// documents: row blocks of documents that lie one after the other in sequences. A mask that shows
/// a row the keys of its own document alone is then what packed sequences are.
///
/// Each row has the number of its document. Numbers of a sequence may not fall, of the only one but
/// once, below the first number: so no document comes twice. One block; a warp takes rows side by
/// side, and what the warps before it have counted says where its documents are written.
#pragma once

#include "cuda/kernels/rows/documents_args.h"
#include "cuda/tile/copy.cuh"

namespace tilewise::documents {

using namespace tile;

template <Config kConfig>
struct Finder {
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kAtOnce = 8;  ///< rows of a lane whose loads are in flight together
  static_assert(kWarps == 32);
  const Args& args;
  int* const starts;  ///< rows where documents begin, and behind the last one the end
  int* const sums;    ///< two of each warp
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  int first, end;     ///< rows of the warp
  int documents = 0;  ///< of all warps
  int documents_before = 0;

  __forceinline__ Finder(const Args& a, int* memory)
      : args(a), starts(memory), sums(memory + kMost + 1) {
    const int each = (args.rows + kThreads - 1) / kThreads * 32;
    first = min(warp * each, args.rows);
    end = min(first + each, args.rows);
  }

  __forceinline__ int id(int row) const {
    const int entry = row / args.length;
    const i64 at = entry * args.stride_b + (row - entry * args.length) * args.stride_s;
    if constexpr (kConfig.wide)
      return static_cast<int>(__ldg(static_cast<const i64*>(args.ids) + at));
    return __ldg(static_cast<const int*>(args.ids) + at);
  }
  /// Gives `take` the warp's rows, one a lane: which, then of all lanes those where a document
  /// begins and those where numbers fall.
  template <class Take>
  __forceinline__ void for_each_row(Take take) const {
    int last = first > 0 && first < end ? id(first - 1) : 0;
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
        const bool first_row = row % args.length == 0;
        const u32 begins = __ballot_sync(~0U, row < end && (first_row || ids[k] != before));
        const u32 falls = __ballot_sync(~0U, row < end && !first_row && ids[k] < before);
        take(row, begins, falls);
      }
    }
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
  /// Of a number of each warp, from `of` on: the sum of all, and of those before this one.
  __forceinline__ void add_warps(const int* of, int& all, int& before) const {
    const int up_to = sum_up_to(of[lane]);
    all = __shfl_sync(~0U, up_to, 31);
    before = __shfl_sync(~0U, up_to, max(warp - 1, 0));
    before = warp == 0 ? 0 : before;
  }

  /// Whether each document comes once, and there may be so many.
  __forceinline__ bool count_documents() {
    int begun = 0, fallen = 0;
    for_each_row([&](int, u32 begins, u32 falls) {
      begun += __popc(begins);
      fallen += __popc(falls);
    });
    if (lane == 0) sums[warp] = begun;
    if (lane == 0) sums[kWarps + warp] = fallen;
    __syncthreads();  // the sums of all warps are there
    int falls = 0, none = 0;
    add_warps(sums + kWarps, falls, none);
    add_warps(sums, documents, documents_before);
    if (documents > args.most) return false;
    const bool only = args.rows == args.length;
    return falls == 0 || (falls == 1 && only && id(args.rows - 1) < id(0));
  }
  __forceinline__ void place_documents() const {
    int at = documents_before;
    for_each_row([&](int row, u32 begins, u32) {
      if ((begins >> lane & 1) != 0) starts[at + __popc(begins & ((1U << lane) - 1))] = row;
      at += __popc(begins);
    });
    if (thread == 0) starts[documents] = args.rows;
    __syncthreads();  // all documents are there, and the sums have been read
  }
  __forceinline__ int blocks_of(int document) const {
    return (starts[document + 1] - starts[document] + kConfig.rows - 1) / kConfig.rows;
  }
  /// Their row blocks; how many, 0 for too many.
  __forceinline__ int place_blocks() const {
    const int each = (documents + kThreads - 1) / kThreads;
    const int from = min(thread * each, documents), to = min(from + each, documents);
    int mine = 0;
    for (int d = from; d < to; ++d) mine += blocks_of(d);
    const int up_to = sum_up_to(mine);
    if (lane == 31) sums[warp] = up_to;
    __syncthreads();  // the sums of all warps are there
    int all = 0, before = 0;
    add_warps(sums, all, before);
    if (all > args.most) return 0;
    int at = before + up_to - mine;
    for (int d = from; d < to; ++d) {
      const int entry = starts[d] / args.length, from_row = entry * args.length;
      const auto begin = static_cast<u32>(starts[d] - from_row);
      const auto behind = static_cast<u32>(starts[d + 1] - from_row);
      for (int n = 0; n < blocks_of(d); ++n)
        store_global_16(args.blocks + 4 * at++,
                        {static_cast<u32>(n), begin, behind, static_cast<u32>(entry)});
    }
    return all;
  }
};

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Finder<kConfig> finder(args, reinterpret_cast<int*>(memory));
  let_next_start();
  wait_for_previous();  // what reads the blocks of the call before is done
  int blocks = 0;
  if (finder.count_documents()) {
    finder.place_documents();
    blocks = finder.place_blocks();
  }
  if (threadIdx.x == 0) *args.count = blocks;
}

}  // namespace tilewise::documents
