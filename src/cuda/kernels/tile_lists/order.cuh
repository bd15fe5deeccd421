/// tile_lists: the order in which rows of tiles are taken.
#pragma once

#include "cuda/kernels/tile_lists/args.h"
#include "cuda/tile/lists_args.h"
#include "cuda/tile/ptx/copy.cuh"

namespace tilewise::tile_lists {

using namespace tile;

/// Rows with many tiles first, so that none of them begins when the others are nearly done: class
/// by class, in each class in the order that they have. One block; a warp takes rows that lie side
/// by side, and what the warps before it have says where they go. A count for each class shares a
/// word.
template <Config kConfig>
struct RowOrder {
  static constexpr int kBits = OrderArgs::kClassBits, kWarps = kOrderThreads / 32;
  static constexpr u64 kMask = (1ULL << kBits) - 1;
  static constexpr int kAtOnce = 4;  ///< rows of a lane whose loads are in flight together
  const OrderArgs& args;
  u64* const of_warps;  ///< sums of the tiles of their rows, then counts of their classes
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int first, end;               ///< rows of the warp
  u32 least[kListClasses - 1];  ///< tiles of a row of each class but the last

  __forceinline__ RowOrder(const OrderArgs& a, u64* memory) : args(a), of_warps(memory) {
    const int each = (args.entries + kOrderThreads - 1) / kOrderThreads * 32;
    first = min(warp * each, args.entries);
    end = min(first + each, args.entries);
  }

  /// Tiles of a row, seen whole and cut.
  __forceinline__ u32 tiles_of_row(i64 row) const {
    const int* counts = args.counts + 2 * row;
    return static_cast<u32>(counts[0]) + static_cast<u32>(counts[1]);
  }
  __forceinline__ u32 tiles(int i) const {
    if constexpr (!kConfig.parts) return tiles_of_row(i);
    const int list = i / args.tiles, row = (i - list * args.tiles) * args.rows_of_tile;
    const int end_row = min(row + args.rows_of_tile, args.rows);
    u32 sum = 0;
#pragma unroll 1
    for (int r = row; r < end_row; ++r) sum += tiles_of_row(static_cast<i64>(list) * args.rows + r);
    return sum;
  }
  /// Gives `take` the warp's rows, one a lane: which, whether there is one, its tiles.
  template <class Take>
  __forceinline__ void for_each_row(Take take) const {
#pragma unroll 1
    for (int begin = first + lane; begin - lane < end; begin += 32 * kAtOnce) {
      u32 n[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int i = begin + 32 * k;
        n[k] = i < end ? tiles(i) : 0;
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) take(begin + 32 * k, begin + 32 * k < end, n[k]);
    }
  }
  __forceinline__ int class_of(u32 n) const { return n >= least[0] ? 0 : n >= least[1] ? 1 : 2; }
  __forceinline__ static u32 sum_of_warp(u32 x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      x += static_cast<u32>(__shfl_xor_sync(~0U, static_cast<int>(x), step));
    return x;
  }

  /// Where classes begin: at 3 and 1.5 times the mean number of tiles.
  __forceinline__ void find_mean() {
    u32 sum = 0;
    for_each_row([&](int, bool, u32 n) { sum += n; });
    sum = sum_of_warp(sum);
    if (lane == 0) of_warps[warp] = sum;
    __syncthreads();  // the sums of all warps are there
    u64 total = 0;
#pragma unroll 4
    for (int w = 0; w < kWarps; ++w) total += of_warps[w];
    const u64 entries = static_cast<u64>(args.entries);
    least[0] = static_cast<u32>((3 * total + entries - 1) / entries);
    least[1] = static_cast<u32>((3 * total + 2 * entries - 1) / (2 * entries));
    __syncthreads();  // and have been read
  }
  __forceinline__ void count_classes() const {
    u32 of[kListClasses] = {};
    for_each_row([&](int, bool there, u32 n) {
#pragma unroll
      for (int c = 0; c < kListClasses; ++c)
        of[c] += static_cast<u32>(__popc(__ballot_sync(~0U, there && class_of(n) == c)));
    });
    u64 all = 0;
#pragma unroll
    for (int c = 0; c < kListClasses; ++c) all |= static_cast<u64>(of[c]) << (kBits * c);
    if (lane == 0) of_warps[warp] = all;
    __syncthreads();  // the counts of all warps are there
  }
  __forceinline__ void place() const {
    u64 before = 0, all = 0;
#pragma unroll 4
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += of_warps[w];
      all += of_warps[w];
    }
    int at[kListClasses], begin = 0;
#pragma unroll
    for (int c = 0; c < kListClasses; ++c) {
      const int count = static_cast<int>(all >> (kBits * c) & kMask);
      at[c] = begin + static_cast<int>(before >> (kBits * c) & kMask);
      begin += count;
      if (threadIdx.x == 0) args.classes[c] = count;
    }
    for_each_row([&](int i, bool there, u32 n) {
      const int mine = there ? class_of(n) : kListClasses;
#pragma unroll
      for (int c = 0; c < kListClasses; ++c) {
        const u32 those = __ballot_sync(~0U, mine == c);
        if (mine == c) args.order[at[c] + __popc(those & ((1U << lane) - 1))] = i;
        at[c] += __popc(those);
      }
    });
  }
};

template <Config kConfig>
__forceinline__ void order(const OrderArgs& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  RowOrder<kConfig> rows(args, reinterpret_cast<u64*>(memory));
  let_next_start();
  wait_for_previous();  // for the counts
  rows.find_mean();
  rows.count_classes();
  rows.place();
}

}  // namespace tilewise::tile_lists
