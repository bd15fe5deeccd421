/// fwd_sm90: the producer of contiguous K and V. run() hands out tiles and copies Q, K and V of
/// each. run_boxes() copies a bias, by a thread of another warp. Each is called by one thread.
#pragma once

#include "cuda/kernels/fwd_sm90/shared.cuh"
#include "cuda/tile/hopper/order.cuh"
#include "cuda/tile/hopper/packed_sequence.cuh"
#include "cuda/tile/hopper/tile_counter.cuh"
#include "cuda/tile/hopper/tma.cuh"
#include "cuda/tile/hopper/wgmma.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

/// What the producer holds of the options: nothing where it copies none.
template <bool kAny>
struct CopiedOptions {};
template <>
struct CopiedOptions<true> {
  const Options* options = nullptr;
};

template <Config kConfig>
struct Producer {
  static constexpr int kBlockN = kConfig.shape.block_n;
  static constexpr int kPanels = SharedPlan::panels(kConfig.head_dim);
  static constexpr int kPanelsV = SharedPlan::panels(kConfig.head_dim_v);
  const Args& args;
  const Shared<kConfig> shared;
  Ring<kConfig.shape.stages> rK;
  Ring<kConfig.shape.value_stages> rV;
  Ring<kConfig.shape.q_buffers> rQ;
  int head_k = 0, k_begin = 0;
  Tile tile;
  u64 asked = 0;
  BoxPlace<kConfig> boxes;
  CopiedOptions<kConfig.boxes_bias()> copied;

  __forceinline__ void begin() const {
    tma_prefetch_map(&args.q);
    tma_prefetch_map(&args.k);
    tma_prefetch_map(&args.v);
    tma_prefetch_map(&args.o);
    if constexpr (kConfig.schedule.dynamic) claim(args.counter);
  }
  /// Asks for the next tile of this block: the answer is on its way while copies start.
  __forceinline__ u64 ask(int index) const {
    if constexpr (kConfig.schedule.dynamic) {
      return tile::ask(args.counter);
    } else {
      return static_cast<u64>(index) + gridDim.x;
    }
  }
  __forceinline__ int answer(u64 asked) const {
    if constexpr (kConfig.schedule.dynamic) {
      return tile::answer(args.counter, asked, args.tiles);
    } else {
      return static_cast<int>(asked);
    }
  }

  __forceinline__ Tile tile_at(int index) const {
    const OrderedTile tile = ordered_tile(args.order, index);
    Tile at;
    at.block = tile.block;
    int bh = tile.bh;
    if constexpr (kConfig.split) {
      at.split = bh % args.splits;
      bh /= args.splits;
    }
    if constexpr (kConfig.lengths == Lengths::packed) {
      at.head = bh;
      find_sequence(at);
    } else {
      at.batch = bh / args.tile_heads;
      at.head = bh - at.batch * args.tile_heads;
    }
    return at;
  }

  /// From a row block of the packed tensor to a sequence and its row block, which may be none of
  /// the sequence's: see query_blocks() of host/sequences.h.
  __forceinline__ void find_sequence(Tile& at) const {
    const int rows = kConfig.shape.warpgroups * warpgroup_queries<kConfig>(args);
    at.batch = last_not_after(args.cu_q, args.sequences, at.block, rows);
    at.block -= offset_at(args.cu_q, at.batch) / rows + at.batch;
  }
  /// The lengths of the tile's sequence.
  __forceinline__ void look_up_lengths() {
    if constexpr (kConfig.lengths == Lengths::keys) {
      tile.seq_q = args.seq_q;
      tile.seq_k = min(max(args.key_lengths[tile.batch * args.key_lengths_b], 0), args.k_rows);
    }
    if constexpr (kConfig.lengths == Lengths::packed) {
      const bool behind = tile.batch == args.sequences;
      tile.q_begin = offset_at(args.cu_q, tile.batch);
      const int q_end = behind ? args.q_rows : offset_at(args.cu_q, tile.batch + 1);
      k_begin = offset_at(args.cu_k, tile.batch);
      const int k_end = behind ? k_begin : offset_at(args.cu_k, tile.batch + 1);
      tile.seq_q = min(max(q_end - tile.q_begin, 0), args.q_rows);
      tile.seq_k = min(max(k_end - k_begin, 0), args.k_rows);
    }
  }

  __forceinline__ int query_of(int warpgroup) const {
    return first_query<kConfig>(args, tile) + warpgroup * warpgroup_queries<kConfig>(args);
  }
  __forceinline__ void load_q(int w) const {
    const int slot = static_cast<int>(rQ.slot), query = query_of(w);
    const u32 full = shared.q_full(slot, w);
    mbarrier_wait(shared.q_empty(slot, w), rQ.parity ^ 1);
    mbarrier_expect(full, kPanels * SharedPlan::kPanel);
    for (int p = 0; p < kPanels; ++p) {
      const u32 to = shared.q(slot, w) + p * SharedPlan::kPanel;
      if constexpr (kQueryRank5<kConfig>) {
        int at[4];
        query_coordinates<kConfig>(at, args, tile, query);
        tma_load_5d(to, &args.q, full, p * kPanelColumns, at, kEvictFirst);
      } else {
        tma_load(to, &args.q, full, p * kPanelColumns, tile.head, query, tile.batch, kEvictFirst);
      }
    }
  }
  /// q_by_need: Q of the warpgroups from `next` down whose rows see `block`. Later queries see no
  /// fewer blocks on the right.
  __forceinline__ void load_q_seeing(int block, const BlockRange& all, int& next) const {
    for (; next >= 0; --next) {
      BlockRange own;
      own_range<kConfig>(own, args, tile, query_of(next), all);
      if (own.begin < own.end && own.end - 1 < block) return;
      load_q(next);
    }
  }
  /// Rows of a block of keys or values: panels of the copy engine.
  __forceinline__ void load_rows(const TensorMapBytes* map, u32 to, u32 full, int panels,
                                 int nth) const {
    const int block = key_block<kConfig>(args, tile, nth);
    for (int p = 0; p < panels; ++p, to += kBlockN * kPanelRowBytes)
      load_panel(map, to, full, p * kPanelColumns, block);
  }
  __forceinline__ void load_panel(const TensorMapBytes* map, u32 to, u32 full, int column,
                                  int block) const {
    if constexpr (kConfig.lengths == Lengths::dense) {
      tma_load(to, map, full, column, head_k, block * kBlockN, tile.batch, kEvictLast);
    } else {
      const int at[4] = {head_k, args.k_rows - tile.seq_k + block * kBlockN, tile.seq_k + k_begin,
                         kSharesRows<kConfig> ? 0 : tile.batch};
      tma_load_5d(to, map, full, column, at, kEvictLast);
    }
  }
  __forceinline__ void load_k(int block) {
    const int s = static_cast<int>(rK.slot);
    mbarrier_wait(shared.k_empty(s), rK.parity ^ 1);
    mbarrier_expect(shared.k_full(s), Shared<kConfig>::kPlan.k_stage);
    load_rows(&args.k, shared.k(s), shared.k_full(s), kPanels, block);
    rK.advance();
  }
  __forceinline__ void load_v(int block) {
    const int s = static_cast<int>(rV.slot);
    mbarrier_wait(shared.v_empty(s), rV.parity ^ 1);
    mbarrier_expect(shared.v_full(s), Shared<kConfig>::kPlan.v_stage);
    load_rows(&args.v, shared.v(s), shared.v_full(s), kPanelsV, block);
    rV.advance();
  }

  __forceinline__ void expect_boxes(int slot, int warpgroup) const {
    const u32 full = shared.boxes_full(slot, warpgroup);
    mbarrier_wait(shared.boxes_empty(slot, warpgroup), boxes.parity() ^ 1);
    mbarrier_expect(full, Shared<kConfig>::kPlan.bias_stage / kConfig.box_barriers());
  }
  /// The bias of all rows of the tile and a block of keys.
  __forceinline__ void load_boxes(int nth) {
    if constexpr (kConfig.boxes_bias()) {
      const BiasTiles& of = copied.options->bias_tiles;
      const int s = boxes.slot(), block = key_block<kConfig>(args, tile, nth);
      if constexpr (!kConfig.schedule.boxes_apart) expect_boxes(s, 0);
      // Heads that share it read it one soon after the other.
      const u64 policy = of.by_head != 0 ? kEvictFirst : kEvictNormal;
      for (int w = 0; w < kConfig.shape.warpgroups; ++w) {
        const u32 full = shared.boxes_full(s, w);
        if constexpr (kConfig.schedule.boxes_apart) expect_boxes(s, w);
        for (int p = 0; p < kBlockN / kPanelColumns; ++p) {
          tma_load(shared.boxes(s, w) + p * SharedPlan::kPanel, &of.map, full,
                   block * kBlockN + p * kPanelColumns, of.by_head * tile.head, query_of(w),
                   of.by_batch * tile.batch, policy);
        }
      }
      boxes.advance();
    }
  }

  __forceinline__ void announce(Ring<2>& slots) const {
    const int s = static_cast<int>(slots.slot);
    mbarrier_wait(shared.tile_empty(s), slots.parity ^ 1);
    store_shared_4(shared.slot(s), static_cast<u32>(tile.block));
    store_shared_4(shared.slot(s) + 4, static_cast<u32>(tile.batch));
    store_shared_4(shared.slot(s) + 8, static_cast<u32>(tile.head));
    store_shared_4(shared.slot(s) + 12, static_cast<u32>(tile.split));
    if constexpr (kConfig.lengths != Lengths::dense) {
      store_shared_4(shared.slot(s) + 16, static_cast<u32>(tile.seq_q));
      store_shared_4(shared.slot(s) + 20, static_cast<u32>(tile.seq_k));
      store_shared_4(shared.slot(s) + 24, static_cast<u32>(tile.q_begin));
    }
    mbarrier_arrive(shared.tile_full(s));  // releases the stores to the consumers that wait for it
    slots.advance();
  }

  /// Order of the copies of a tile: K of the last block, Q, then K and V in turn, V one block
  /// behind. With two buffers of Q its place is free at once.
  __forceinline__ void copy_tile(int index) {
    head_k = kConfig.pack_heads ? tile.head : tile.head / args.group;
    const BlockRange range = tile_range<kConfig>(args, tile);
    int block = range.end - 1;
    const bool any = range.begin < range.end;
    int next = kConfig.shape.warpgroups - 1;
    if (kConfig.shape.q_buffers == 1 && any) {
      load_k(block);
      if constexpr (!kConfig.schedule.boxes_apart) load_boxes(block);
    }
    if constexpr (kConfig.schedule.q_by_need) {
      load_q_seeing(block, range, next);
    } else {
      for (int w = 0; w < kConfig.shape.warpgroups; ++w) load_q(w);
    }
    if (kConfig.shape.q_buffers > 1 && any) {
      load_k(block);
      if constexpr (!kConfig.schedule.boxes_apart) load_boxes(block);
    }
    for (; block > range.begin; --block) {
      load_k(block - 1);
      if constexpr (!kConfig.schedule.boxes_apart) load_boxes(block - 1);
      load_v(block);
      if constexpr (kConfig.schedule.q_by_need) load_q_seeing(block - 1, range, next);
    }
    rQ.advance();
    asked = ask(index);
    if (any) load_v(block);
  }

  /// A thread of another warp: the boxes of the tiles that run() announces.
  __forceinline__ void run_boxes() {
    Ring<2> slots;
    while (true) {
      const int s = static_cast<int>(slots.slot);
      mbarrier_wait(shared.tile_full(s), slots.parity);
      load_tile(tile, shared, s);
      mbarrier_arrive(shared.tile_empty(s));
      slots.advance();
      if (tile.block < 0) return;
      const BlockRange range = tile_range<kConfig>(args, tile);
      for (int block = range.end - 1; block >= range.begin; --block) load_boxes(block);
    }
  }

  __forceinline__ void run() {
    begin();
    Ring<2> slots;
    int index = static_cast<int>(blockIdx.x);
    while (index < args.tiles) {
      tile = tile_at(index);
      look_up_lengths();
      const int query = first_query<kConfig>(args, tile);
      if (kConfig.lengths == Lengths::packed && (query < 0 || query >= tile.seq_q)) {
        asked = ask(index);
      } else {
        announce(slots);
        copy_tile(index);
      }
      index = answer(asked);
    }
    tile.block = -1;
    announce(slots);
  }
};

}  // namespace tilewise::fwd_sm90
