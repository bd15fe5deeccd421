/// tile_lists: the order in which rows of tiles are taken.
#pragma once

#include "cuda/kernels/tile_lists/args.h"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/lists_args.h"

namespace tilewise::tile_lists {

using namespace tile;

/// Sums over the threads of the block.
struct ThreadSums {
  u64 before, all;  ///< over those before this one; over all
};
__forceinline__ u64 of_lane(u64 x, int lane) {
  return static_cast<u64>(__shfl_sync(~0U, static_cast<long long>(x), lane));
}
__forceinline__ ThreadSums sum_threads(u64 x, u64* of_warps) {
  constexpr int kWarps = kOrderThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  u64 sum = x;  // of the warp's threads up to this one
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const u64 other = of_lane(sum, max(lane - step, 0));
    if (lane >= step) sum += other;
  }
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();  // the sums of warps are there
  ThreadSums sums{sum - x, 0};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const u64 of_warp = of_warps[w];
    if (w < warp) sums.before += of_warp;
    sums.all += of_warp;
  }
  __syncthreads();  // and have been read
  return sums;
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
  u64* const of_warps = reinterpret_cast<u64*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const int each = (args.entries + kOrderThreads - 1) / kOrderThreads;
  const int first = min(thread * each, args.entries), end = min(first + each, args.entries);
  let_next_start();
  wait_for_previous();  // for the counts
  const auto read = [&](int i) {
    const int list = i / args.tiles, row = (i - list * args.tiles) * args.rows_of_tile;
    const int end = min(row + args.rows_of_tile, args.rows);
    u64 sum = 0;
    for (int r = row; r < end; ++r) {
      const int* counts = args.counts + 2 * (static_cast<i64>(list) * args.rows + r);
      sum += static_cast<u64>(counts[0]) + static_cast<u64>(counts[1]);
    }
    return sum;
  };
  // Most often a thread has one entry, which is read once.
  const u64 of_first = first < end ? read(first) : 0;
  const auto tiles = [&](int i) { return i == first ? of_first : read(i); };
  u64 mine = 0;
  for (int i = first; i < end; ++i) mine += tiles(i);
  const u64 total = sum_threads(mine, of_warps).all;
  const auto class_of = [&](int i) {
    const u64 n = tiles(i) * static_cast<u64>(args.entries);
    return n >= 3 * total ? 0 : 2 * n >= 3 * total ? 1 : 2;
  };
  mine = 0;
  for (int i = first; i < end; ++i) mine += 1ULL << (kBits * class_of(i));
  const ThreadSums sums = sum_threads(mine, of_warps);
  const u64 counts = sums.all;
  u64 at = sums.before;
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

}  // namespace tilewise::tile_lists
