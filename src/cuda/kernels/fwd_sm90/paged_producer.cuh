/// fwd_sm90: the producer of a problem whose K and V lie in pages. It is a warp: each lane looks up
/// the pages of its boxes, a block of keys ahead, and copies them; what one thread must do lane 0
/// does.
#pragma once

#include "cuda/kernels/fwd_sm90/producer.cuh"
#include "cuda/tile/sequences.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

template <Config kConfig>
struct PagedProducer : Producer<kConfig> {
  using Base = Producer<kConfig>;
  using Base::args, Base::asked, Base::head_k, Base::rK, Base::rQ, Base::rV, Base::shared,
      Base::tile;
  using Base::kBlockN;
  static_assert(kConfig.q_buffers == 1 && !kConfig.q_by_need && kConfig.lists == Lists::none);
  static constexpr int kBoxes = kConfig.page_boxes;
  using PageNumbers = int[kBoxes];
  const int lane = static_cast<int>(threadIdx.x);
  int last_box = 0;  ///< first key of the last box that has a key
  // Pages of the lane's boxes: of the block whose keys are next, of the one whose keys were last,
  // of the one whose values are next.
  PageNumbers ahead, keys_at, values_at;

  __forceinline__ const PagedArgs& paged() const { return static_cast<const PagedArgs&>(args); }

  /// First key of box `n` of a block of keys. A box behind the last key is never read: the last one
  /// that has a key stands for it, whose scores there are hidden.
  __forceinline__ int box_key(int block, int n) const {
    return min(key_block<kConfig>(args, tile, block) * kBlockN + n * paged().box_rows, last_box);
  }
  /// Visits the lane's boxes: visit(index among them, number in the block).
  template <class Visit>
  __forceinline__ void each_box(Visit visit) const {
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      const int n = lane + 32 * i;
      if (n * paged().box_rows < kBlockN) visit(i, n);
    }
  }
  __forceinline__ void find_pages(int block) {
    each_box([&](int i, int n) {
      ahead[i] = static_cast<int>(page_row(paged().pages, tile.batch, box_key(block, n)).page);
    });
  }
  __forceinline__ void load_boxes(const TensorMapBytes* map, u32 to, u32 full, int panels,
                                  int block, const PageNumbers& of) const {
    each_box([&](int i, int n) {
      const int key = box_key(block, n), size = paged().pages.size;
      const int row = key - page_of(paged().pages, key) * size;
      const int rows = min(size, tile.seq_k - key + row);  // of the page that are keys
      const int at[4] = {head_k, size - rows + row, rows, of[i]};
      for (int p = 0; p < panels; ++p) {
        tma_load_5d(to + (p * kBlockN + n * paged().box_rows) * kPanelRowBytes, map, full,
                    p * kPanelColumns, at, kEvictLast);
      }
    });
  }
  /// Waits until a stage is free, and says how many bytes come.
  __forceinline__ void open_stage(u32 empty, u32 full, u32 parity, u32 bytes) const {
    mbarrier_wait(empty, parity ^ 1);
    if (lane == 0) mbarrier_expect(full, bytes);
    __syncwarp();  // before any of them arrives
  }

  /// K of a block, whose pages find_pages() has looked up. `next`: the block after it, or none
  /// (< 0).
  __forceinline__ void load_k(int block, int next) {
    const int s = static_cast<int>(rK.slot);
    open_stage(shared.k_empty(s), shared.k_full(s), rK.parity, Shared<kConfig>::kPlan.k_stage);
    load_boxes(&args.k, shared.k(s), shared.k_full(s), Base::kPanels, block, ahead);
    rK.advance();
    pass_pages();
    if (next >= 0) find_pages(next);
  }
  __forceinline__ void pass_pages() {
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) values_at[i] = keys_at[i], keys_at[i] = ahead[i];
  }
  __forceinline__ void load_v(int block) {
    const int s = static_cast<int>(rV.slot);
    open_stage(shared.v_empty(s), shared.v_full(s), rV.parity, Shared<kConfig>::kPlan.v_stage);
    load_boxes(&args.v, shared.v(s), shared.v_full(s), Base::kPanelsV, block, values_at);
    rV.advance();
  }

  /// As Producer::copy_tile.
  __forceinline__ void copy_tile(int index) {
    head_k = kConfig.pack_heads ? tile.head : tile.head / args.group;
    const BlockRange range = tile_range<kConfig>(args, tile);
    int block = range.end - 1;
    const bool any = range.begin < range.end;
    const auto after = [&](int b) { return b > range.begin ? b - 1 : -1; };
    if (any) {
      last_box = (tile.seq_k - 1) / paged().box_rows * paged().box_rows;
      find_pages(block);
      load_k(block, after(block));
    }
    for (int w = 0; w < kConfig.warpgroups && lane == 0; ++w) this->load_q(w);
    for (; block > range.begin; --block) {
      load_k(block - 1, after(block - 1));
      load_v(block);
    }
    rQ.advance();
    if (lane == 0) asked = this->ask(index);
    if (any) {
      pass_pages();
      load_v(block);
    }
  }

  __forceinline__ void announce(Ring<2>& slots) const {
    Ring<2> at = slots;
    if (lane == 0) Base::announce(at);
    slots.advance();
  }
  __forceinline__ int next_index() const {
    return __shfl_sync(~0U, lane == 0 ? this->answer(asked) : 0, 0);
  }
  /// Queries may be packed; keys are those of the sequence's row of the table.
  __forceinline__ void look_up_lengths() {
    tile.seq_q = args.seq_q;
    bool behind = false;
    if constexpr (kConfig.lengths == Lengths::packed) {
      behind = tile.batch == args.sequences;
      tile.q_begin = offset_at(args.cu_q, tile.batch);
      const int q_end = behind ? args.q_rows : offset_at(args.cu_q, tile.batch + 1);
      tile.seq_q = min(max(q_end - tile.q_begin, 0), args.q_rows);
    }
    const int keys = behind ? 0 : args.key_lengths[tile.batch * args.key_lengths_b];
    tile.seq_k = min(max(keys, 0), args.k_rows);
  }

  __forceinline__ void run() {
    if (lane == 0) {
      tma_prefetch_map(&args.q);
      tma_prefetch_map(&args.k);
      tma_prefetch_map(&args.v);
      tma_prefetch_map(&args.o);
      this->claim_counter();
    }
    Ring<2> slots;
    int index = static_cast<int>(blockIdx.x);
    while (index < args.tiles) {
      tile = this->tile_at(index);
      look_up_lengths();
      const int query = first_query<kConfig>(args, tile);
      if (kConfig.lengths == Lengths::packed && (query < 0 || query >= tile.seq_q)) {
        if (lane == 0) asked = this->ask(index);
      } else {
        announce(slots);
        copy_tile(index);
      }
      index = next_index();
    }
    tile.block = -1;
    announce(slots);
  }
};

}  // namespace tilewise::fwd_sm90
