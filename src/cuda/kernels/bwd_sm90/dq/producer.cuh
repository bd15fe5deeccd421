/// bwd_dq_sm90: the producer, one thread: hands out tiles and copies Q, dO, K and V of each.
#pragma once

#include "cuda/kernels/bwd_sm90/dq/shared.cuh"
#include "cuda/kernels/bwd_sm90/sequences.cuh"
#include "cuda/tile/hopper/signal.cuh"
#include "cuda/tile/hopper/tma.cuh"

namespace tilewise::bwd_dq_sm90 {

using namespace tile;

template <Config kConfig>
struct Producer {
  static constexpr SharedPlan kPlan{kConfig};
  const Args& args;
  const Shared<kConfig> shared;
  Ring<kConfig.k_stages> rK;
  Ring<kConfig.v_stages> rV;
  Ring<1> rQ, rO;
  Ring<2> slots;
  Tile tile;
  int head_k = 0;

  __forceinline__ u32 ask() const { return atomicAdd(args.next_tile, 1U); }

  __forceinline__ Tile tile_at(int index) const {
    const OrderedTile at = ordered_tile(args.order, index);
    const int batch = at.bh / args.heads_q;
    return {at.block, batch, at.bh - batch * args.heads_q};
  }
  __forceinline__ void announce() {
    mbarrier_wait(shared.tile_empty(slots.slot), slots.parity ^ 1);
    const u32 at = shared.slot(slots.slot);
    store_shared_4(at, static_cast<u32>(tile.block));
    store_shared_4(at + 4, static_cast<u32>(tile.batch));
    store_shared_4(at + 8, static_cast<u32>(tile.head));
    if constexpr (kConfig.ragged()) {
      store_shared_4(at + 16, static_cast<u32>(tile.seq_q));
      store_shared_4(at + 20, static_cast<u32>(tile.seq_k));
      store_shared_4(at + 24, static_cast<u32>(tile.q_begin));
    }
    mbarrier_arrive(shared.tile_full(slots.slot));  // releases the stores to the consumers
    slots.advance();
  }

  /// 64 rows: one box for each panel of `map`.
  template <bool kRagged>
  __forceinline__ void load_rows(u32 to, const TensorMapBytes& map, int bytes, u32 full, int head,
                                 int row, const int (&at)[4], u64 policy) const {
    mbarrier_expect(full, bytes);
#pragma unroll 1
    for (int p = 0; p < bytes / SharedPlan::kPanel; ++p) {
      if constexpr (kRagged) {
        tma_load_5d(to + p * SharedPlan::kPanel, &map, full, p * kPanelColumns, at, policy);
      } else {
        tma_load(to + p * SharedPlan::kPanel, &map, full, p * kPanelColumns, head, row, tile.batch,
                 policy);
      }
    }
  }
  __forceinline__ void load_keys(u32 to, const TensorMapBytes& map, int bytes, u32 full,
                                 int row) const {
    int at[4] = {};
    if constexpr (kConfig.ragged()) key_coordinates<kConfig>(at, args, tile, head_k, row);
    load_rows<kConfig.ragged()>(to, map, bytes, full, head_k, row, at, kEvictLast);
  }
  __forceinline__ void load_queries(u32 to, const TensorMapBytes& map, int bytes, u32 full,
                                    int row) const {
    int at[4] = {};
    if constexpr (kPacked<kConfig>) query_coordinates<kConfig>(at, args, tile, row);
    load_rows<kPacked<kConfig>>(to, map, bytes, full, tile.head, row, at, kEvictFirst);
  }
  __forceinline__ void load_k(int block) {
    const u32 s = rK.slot;
    mbarrier_wait(shared.k_empty(s), rK.parity ^ 1);
    load_keys(shared.k(s), args.k, kPlan.columns, shared.k_full(s), block * kBlockN);
    rK.advance();
  }
  __forceinline__ void load_v(int block) {
    const u32 s = rV.slot;
    mbarrier_wait(shared.v_empty(s), rV.parity ^ 1);
    load_keys(shared.v(s), args.v, kPlan.columns_v, shared.v_full(s), block * kBlockN);
    rV.advance();
  }
  __forceinline__ void load_q() {
#pragma unroll 1
    for (int w = 0; w < kWarpgroups; ++w) {
      mbarrier_wait(shared.q_empty(w), rQ.parity ^ 1);
      load_queries(shared.q(w), args.q, kPlan.columns, shared.q_full(w),
                   tile.block * kBlockM + w * 64);
    }
    rQ.advance();
  }
  __forceinline__ void load_do() {
#pragma unroll 1
    for (int w = 0; w < kWarpgroups; ++w) {
      mbarrier_wait(shared.do_empty(w), rO.parity ^ 1);
      load_queries(shared.d_o(w), args.d_o, kPlan.columns_v, shared.do_full(w),
                   tile.block * kBlockM + w * 64);
    }
    rO.advance();
  }

  /// Last what the tile before leaves last.
  __forceinline__ void load_both() {
    if constexpr (Shared<kConfig>::kStagedInDo) {
      load_q();
      load_do();
    } else {
      load_do();
      load_q();
    }
  }

  /// Copies a tile's rows and keys, from right to left, and gives back the next tile's index, asked
  /// for while copies are still to come.
  __forceinline__ u32 load_tile() {
    head_k = tile.head / args.group;
    const BlockRange range = key_range<kConfig>(args, tile, tile.block * kBlockM, kBlockM);
    if (range.begin >= range.end) {
      load_both();  // whose place zeros will take
      return ask();
    }
    u32 next = 0;
#pragma unroll 1
    for (int block = range.end - 1; block >= range.begin; --block) {
      if (block == range.begin) next = ask();
      load_k(block);
      load_v(block);
      if (block == range.end - 1) load_both();
    }
    return next;
  }

  __forceinline__ void run() {
    tma_prefetch_map(&args.q);
    tma_prefetch_map(&args.k);
    tma_prefetch_map(&args.v);
    tma_prefetch_map(&args.d_o);
    tma_prefetch_map(&args.dq);
    int index = static_cast<int>(ask());
    while (index < args.tiles) {
      tile = tile_at(index);
      if constexpr (kConfig.ragged()) {
        if (!bwd_sm90::look_up<kConfig.lengths>(ragged<kConfig>(args), tile, false, kBlockM)) {
          index = static_cast<int>(ask());
          continue;
        }
      }
      // bwd_sm90 may still be at work: its offsets and deltas of this head must be there.
      signal_wait(args.prepared + entry_of<kConfig>(tile) * args.heads_k + tile.head / args.group,
                  args.warps);
      announce();
      index = static_cast<int>(load_tile());
    }
    tile.block = -1;
    announce();
    wait_for_previous();  // who waits for this kernel waits for bwd_sm90 by it
  }
};

}  // namespace tilewise::bwd_dq_sm90
