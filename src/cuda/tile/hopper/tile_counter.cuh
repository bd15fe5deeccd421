/// A counter that hands out tiles to the blocks of one launch. Nothing sets it before or after: the
/// first block to come starts the count, the last answer leaves 0, so that a captured graph
/// replays.
#pragma once

#include "cuda/tile/hopper/signal.cuh"
#include "cuda/tile/hopper/tile_counter_args.h"
#include "cuda/tile/ptx/copy.cuh"

namespace tilewise::tile {

/// Makes the counter's word ours, whatever it holds.
__forceinline__ void claim(const TileCounter& counter) {
  u64 seen = *reinterpret_cast<volatile u64*>(counter.word);
  while (seen >> TileCounter::kCountBits != counter.tag) {
    const u64 found = atomicCAS(counter.word, seen, counter.tag << TileCounter::kCountBits);
    if (found == seen) break;
    seen = found;
  }
}

/// Asks for a block's next tile; its first is its own index. A launch asks as often as there are
/// tiles, once after each.
__forceinline__ u64 ask(const TileCounter& counter) { return atomicAdd(counter.word, 1ULL); }

/// The tile of an answer, one of `tiles` or none. No block comes to claim the counter after the
/// last answer, which leaves 0: a replay with the same tag starts anew.
__forceinline__ int answer(const TileCounter& counter, u64 asked, int tiles) {
  const int count = static_cast<int>(asked & ((1ULL << TileCounter::kCountBits) - 1));
  if (count == tiles - 1) *reinterpret_cast<volatile u64*>(counter.word) = 0;
  return static_cast<int>(gridDim.x) + count;
}

/// One thread: whether it is the last of `count` that come to the counter. It sees what the others
/// had written, and is seen.
__forceinline__ bool comes_last(const TileCounter& counter, int count) {
  fence_device();
  claim(counter);
  const u64 before = atomicAdd(counter.word, 1ULL);
  const bool last = static_cast<int>(before & ((1ULL << TileCounter::kCountBits) - 1)) == count - 1;
  if (last) *reinterpret_cast<volatile u64*>(counter.word) = 0;
  fence_device();
  return last;
}

}  // namespace tilewise::tile
