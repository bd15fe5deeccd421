/// fwd_sm90: the producer, one thread: hands out tiles and copies Q, K and V of each.
#pragma once

#include "cuda/kernels/fwd_sm90_shared.cuh"
#include "cuda/tile/tma.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

template <Config kConfig>
struct Producer {
  static constexpr int kBlockM = 64 * kConfig.warpgroups, kBlockN = kConfig.block_n;
  static constexpr int kPanels = SharedPlan::panels(kConfig.head_dim);
  static constexpr int kPanelsV = SharedPlan::panels(kConfig.head_dim_v);
  const Args& args;
  const Shared<kConfig> shared;
  Ring<kConfig.stages> rK, rV;
  Ring<kConfig.q_buffers> rQ;
  int head_k = 0;
  Tile tile;

  /// Makes the counter's word ours, whatever it holds: the first block to come starts the count.
  __forceinline__ void claim_counter() const {
    if constexpr (kConfig.dynamic) {
      u64 seen = *reinterpret_cast<volatile u64*>(args.counter.word);
      while (seen >> TileCounter::kCountBits != args.counter.tag) {
        const u64 found =
            atomicCAS(args.counter.word, seen, args.counter.tag << TileCounter::kCountBits);
        if (found == seen) break;
        seen = found;
      }
    }
  }

  /// Asks for the next tile of this block (its first is its own index): the answer is on its way
  /// while copies start. A launch asks args.tiles times, once after each tile.
  __forceinline__ u64 ask(int index) const {
    if constexpr (kConfig.dynamic) {
      return atomicAdd(args.counter.word, 1ULL);
    } else {
      return static_cast<u64>(index) + gridDim.x;
    }
  }
  /// No block comes to claim the counter after the last answer, which leaves 0: a replay with the
  /// same tag starts anew.
  __forceinline__ int answer(u64 asked) const {
    if constexpr (kConfig.dynamic) {
      const int count = static_cast<int>(asked & ((1ULL << TileCounter::kCountBits) - 1));
      if (count == args.tiles - 1) *reinterpret_cast<volatile u64*>(args.counter.word) = 0;
      return static_cast<int>(gridDim.x) + count;
    } else {
      return static_cast<int>(asked);
    }
  }

  __forceinline__ Tile tile_at(int index) const {
    const SectionOrder& order = args.order;
    const int first_tiles = order.sections * order.section_heads * order.blocks;
    const bool last = index >= first_tiles;
    const int heads = last ? order.last_heads : order.section_heads;
    const int from = last ? index - first_tiles : index;
    const int section = from / (heads * order.blocks);
    const int rest = from - section * heads * order.blocks;
    const int head0 = (last ? order.sections * order.section_heads : 0) + section * heads;
    const int here = min(heads, order.heads - head0);
    Tile at;
    at.block = order.blocks - 1 - rest / here;
    int pair = head0 + rest % here;
    if constexpr (kConfig.split) {
      at.split = pair % args.splits;
      pair /= args.splits;
    }
    at.batch = pair / args.heads_q;
    at.head = pair - at.batch * args.heads_q;
    return at;
  }

  __forceinline__ void load_q(int block) {
    for (int w = 0; w < kConfig.warpgroups; ++w) {
      const u32 full = shared.q_full(static_cast<int>(rQ.slot), w);
      mbarrier_wait(shared.q_empty(static_cast<int>(rQ.slot), w), rQ.parity ^ 1);
      mbarrier_expect(full, Shared<kConfig>::kPlan.q_warpgroup);
      for (int p = 0; p < kPanels; ++p) {
        tma_load(shared.q(static_cast<int>(rQ.slot), w) + p * SharedPlan::kPanel, &args.q, full,
                 p * kPanelColumns, tile.head, block * kBlockM + w * 64, tile.batch, kEvictFirst);
      }
    }
    rQ.advance();
  }
  __forceinline__ void load_k(int block) {
    const int s = static_cast<int>(rK.slot);
    mbarrier_wait(shared.k_empty(s), rK.parity ^ 1);
    mbarrier_expect(shared.k_full(s), Shared<kConfig>::kPlan.k_stage);
    for (int p = 0; p < kPanels; ++p) {
      tma_load(shared.k(s) + p * kBlockN * kPanelRowBytes, &args.k, shared.k_full(s),
               p * kPanelColumns, head_k, block * kBlockN, tile.batch, kEvictLast);
    }
    rK.advance();
  }
  __forceinline__ void load_v(int block) {
    const int s = static_cast<int>(rV.slot);
    mbarrier_wait(shared.v_empty(s), rV.parity ^ 1);
    mbarrier_expect(shared.v_full(s), Shared<kConfig>::kPlan.v_stage);
    for (int p = 0; p < kPanelsV; ++p) {
      tma_load(shared.v(s) + p * kBlockN * kPanelRowBytes, &args.v, shared.v_full(s),
               p * kPanelColumns, head_k, block * kBlockN, tile.batch, kEvictLast);
    }
    rV.advance();
  }

  __forceinline__ void announce(Ring<2>& slots) const {
    const int s = static_cast<int>(slots.slot);
    mbarrier_wait(shared.tile_empty(s), slots.parity ^ 1);
    store_shared_4(shared.slot(s), static_cast<u32>(tile.block));
    store_shared_4(shared.slot(s) + 4, static_cast<u32>(tile.batch));
    store_shared_4(shared.slot(s) + 8, static_cast<u32>(tile.head));
    store_shared_4(shared.slot(s) + 12, static_cast<u32>(tile.split));
    mbarrier_arrive(shared.tile_full(s));  // releases the stores to the consumers that wait for it
    slots.advance();
  }

  /// Order of the copies of a tile: K of the last block, Q, then K and V in turn, V one block
  /// behind.
  __forceinline__ void run() {
    tma_prefetch_map(&args.q);
    tma_prefetch_map(&args.k);
    tma_prefetch_map(&args.v);
    tma_prefetch_map(&args.o);
    claim_counter();
    Ring<2> slots;
    int index = static_cast<int>(blockIdx.x);
    while (index < args.tiles) {
      tile = tile_at(index);
      announce(slots);
      head_k = tile.head / args.group;
      const int row = tile.block * kBlockM;
      const BlockRange range =
          block_range<kConfig>(args, row, min(row + kBlockM, args.seq_q), tile.split);
      int block = range.end - 1;
      const bool any = range.begin < range.end;
      if (kConfig.q_buffers == 1 && any) load_k(block);
      load_q(tile.block);
      if (kConfig.q_buffers > 1 && any) load_k(block);
      for (; block > range.begin; --block) {
        load_k(block - 1);
        load_v(block);
      }
      const u64 asked = ask(index);
      if (any) load_v(block);
      index = answer(asked);
    }
    tile.block = -1;
    announce(slots);
  }
};

}  // namespace tilewise::fwd_sm90
