/// tile_lists: the order in which rows of tiles are taken.
#pragma once

#include "cuda/kernels/tile_lists/args.h"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/lists_args.h"

namespace tilewise::tile_lists {

using namespace tile;

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

}  // namespace tilewise::tile_lists
