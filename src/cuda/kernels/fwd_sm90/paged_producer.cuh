/// fwd_sm90: the producer of a problem whose K and V lie in pages. It is a warpgroup. The first
/// warp hands out tiles and copies Q, all four copy their share of a block of keys, whose pages
/// their lanes have looked up a block ahead.
#pragma once

#include "cuda/kernels/fwd_sm90/producer.cuh"
#include "cuda/tile/sequences.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

template <Config kConfig>
struct PagedProducer {
  using Base = Producer<kConfig>;
  static constexpr int kBlockN = Base::kBlockN;
  static_assert(kConfig.shape.q_buffers == 1 && !kConfig.schedule.q_by_need &&
                kConfig.lists == Lists::none);
  static constexpr bool kByRows = kConfig.pages == PageCopies::rows;
  /// By boxes two warps take every other panel where there are several, and the pairs every other
  /// box.
  static constexpr int kPanelShare = Base::kPanels > 1 || Base::kPanelsV > 1 ? 2 : 1;
  static constexpr int kBoxShare = kProducerWarps / kPanelShare;
  /// By rows each warp takes consecutive ones.
  static constexpr int kWarpRows = kBlockN / kProducerWarps;
  static_assert(!kByRows || (kWarpRows % 4 == 0 && kWarpRows <= 32));

  Base base;
  const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int last = 0;  ///< of the keys the last one, or the first one of the last box that has a key
  // Pages of the lane's keys: of the block that is next, of the one whose keys were last, of the
  // one whose values are next.
  int ahead = 0, keys_at = 0, values_at = 0;

  __forceinline__ const PagedArgs& paged() const {
    return static_cast<const PagedArgs&>(base.args);
  }
  __forceinline__ int block_begin(int block) const {
    return key_block<kConfig>(base.args, base.tile, block) * kBlockN;
  }
  /// Which of a block's keys is the lane's: it begins the lane's box, or it is its row.
  __forceinline__ int place() const {
    return kByRows ? warp * kWarpRows + lane
                   : (lane * kBoxShare + warp / kPanelShare) * paged().box_rows;
  }
  __forceinline__ bool has_place() const { return kByRows ? lane < kWarpRows : place() < kBlockN; }
  /// The lane's key of a block. Nothing is looked up behind the last key, or the last box that has
  /// one: it stands for what lies there, whose scores are hidden.
  __forceinline__ int lane_key(int block) const { return min(block_begin(block) + place(), last); }
  __forceinline__ int row_of(int key) const {
    return key - page_of(paged().pages, key) * paged().pages.size;
  }
  __forceinline__ void find_pages(int block) {
    if (has_place())
      ahead = static_cast<int>(page_row(paged().pages, base.tile.batch, lane_key(block)).page);
  }
  __forceinline__ void pass_pages() {
    values_at = keys_at;
    keys_at = ahead;
  }

  // ---- boxes

  /// Whether the warp copies any of so many panels.
  __forceinline__ bool has_boxes(int panels) const {
    return warp % kPanelShare < panels && warp / kPanelShare * paged().box_rows < kBlockN;
  }
  /// A box is of one page. What lies behind the page's last key reads as zeros.
  __forceinline__ void load_boxes(const TensorMapBytes* map, u32 to, u32 empty, u32 full,
                                  u32 parity, u32 bytes, int panels, int block, int page) const {
    if (!has_boxes(panels)) return;  // it need not know of the stage
    // The bytes of the other warps may arrive before they are expected.
    if (lane == 0) {
      mbarrier_wait(empty, parity ^ 1);
      if (warp == 0) mbarrier_expect(full, bytes);
    }
    __syncwarp();
    if (!has_place()) return;
    const int key = lane_key(block), row = row_of(key), size = paged().pages.size;
    const int rows = min(size, base.tile.seq_k - key + row);  // of the page that are keys
    const int at[4] = {base.head_k, size - rows + row, rows, page};
    for (int p = warp % kPanelShare; p < panels; p += kPanelShare) {
      tma_load_5d(to + (p * kBlockN + place()) * kPanelRowBytes, map, full, p * kPanelColumns, at,
                  kEvictLast);
    }
  }

  // ---- rows

  /// Eight lanes copy a row of a panel. Consumers fence what has landed before they read it: a
  /// producer that waits to do so copies less at a time.
  template <int kCount>
  __forceinline__ void load_rows(const View& view, int columns, u32 to, u32 empty, u32 full,
                                 u32 parity, int block, int page) const {
    const i64 own = page * view.stride_b + row_of(lane_key(block)) * view.stride_s;
    const int keys = base.tile.seq_k - block_begin(block), chunk = lane % 8;
    // NOTE: one lane waits. Another that asked late could miss the phase.
    if (lane == 0) mbarrier_wait(empty, parity ^ 1);
    __syncwarp();
    const u32 at =
        SharedTile<kBlockN, kPanelColumns>{to}.address(warp * kWarpRows + lane / 8, chunk);
    if (keys >= kBlockN && columns == kCount * kPanelColumns) {
      load_whole_rows<kCount>(
          reinterpret_cast<i64>(view.data) + 2 * (base.head_k * view.stride_h + own), at);
    } else {
      load_cut_rows<kCount>(
          static_cast<const unsigned short*>(view.data) + base.head_k * view.stride_h + 8 * chunk,
          own, 2 * columns - 16 * chunk, keys, at);
    }
    mbarrier_arrive_copies(full);
  }
  /// Shared memory of the lane's row four rows on: the swizzle differs in one bit.
  static __forceinline__ u32 four_rows_on(u32 at) { return (at ^ 64U) + 4 * kPanelRowBytes; }
  /// A block with all its keys, in columns that rows have. `begin`: address of the lane's row.
  template <int kCount>
  __forceinline__ void load_whole_rows(i64 begin, u32 at) const {
    // Where three warpgroups compute, producers have 32 registers.
    constexpr int kAtATime = kConfig.shape.warpgroups > 2 ? 1 : kWarpRows / 4;
#pragma unroll kAtATime
    for (int n = 0; n < kWarpRows / 4; ++n, at = four_rows_on(at)) {
      const i64 at_lane = __shfl_sync(~0U, begin, 4 * n + lane / 8) + lane % 8 * 16;
      const auto* row = __builtin_bit_cast(const char*, at_lane);
#pragma unroll
      for (int p = 0; p < kCount; ++p)
        copy_async_16(at + p * kBlockN * kPanelRowBytes, row + p * kPanelRowBytes, 16);
    }
  }
  /// Rows behind the last key become zeros, and columns behind the last one. `own`: where the
  /// lane's row begins; `bytes`: that are there from the lane's chunk of the first panel on.
  template <int kCount>
  __forceinline__ void load_cut_rows(const unsigned short* from, i64 own, int bytes, int keys,
                                     u32 at) const {
    int row = warp * kWarpRows + lane / 8;
#pragma unroll 1
    for (int n = 0; n < kWarpRows / 4; ++n, row += 4, at = four_rows_on(at)) {
      const unsigned short* of_row = from + __shfl_sync(~0U, own, 4 * n + lane / 8);
#pragma unroll
      for (int p = 0; p < kCount; ++p) {
        copy_async_16(at + p * kBlockN * kPanelRowBytes, of_row + p * kPanelColumns,
                      row < keys ? min(max(bytes - p * kPanelRowBytes, 0), 16) : 0);
      }
    }
  }

  // ---- blocks of keys

  /// K of a block, whose pages find_pages() has looked up. `next`: the block after it, or none
  /// (< 0).
  __forceinline__ void load_k(int block, int next) {
    const int s = static_cast<int>(base.rK.slot);
    if constexpr (kByRows) {
      load_rows<Base::kPanels>(paged().k_pages, paged().columns_k, base.shared.k(s),
                               base.shared.k_empty(s), base.shared.k_full(s), base.rK.parity, block,
                               ahead);
    } else {
      load_boxes(&base.args.k, base.shared.k(s), base.shared.k_empty(s), base.shared.k_full(s),
                 base.rK.parity, Shared<kConfig>::kPlan.k_stage, Base::kPanels, block, ahead);
    }
    base.rK.advance();
    pass_pages();
    if (next >= 0) find_pages(next);
  }
  __forceinline__ void load_v(int block) {
    const int s = static_cast<int>(base.rV.slot);
    if constexpr (kByRows) {
      load_rows<Base::kPanelsV>(paged().v_pages, paged().columns_v, base.shared.v(s),
                                base.shared.v_empty(s), base.shared.v_full(s), base.rV.parity,
                                block, values_at);
    } else {
      load_boxes(&base.args.v, base.shared.v(s), base.shared.v_empty(s), base.shared.v_full(s),
                 base.rV.parity, Shared<kConfig>::kPlan.v_stage, Base::kPanelsV, block, values_at);
    }
    base.rV.advance();
  }

  /// As Producer::copy_tile.
  __forceinline__ void copy_tile(int index) {
    base.head_k = kConfig.pack_heads ? base.tile.head : base.tile.head / base.args.group;
    const BlockRange range = tile_range<kConfig>(base.args, base.tile);
    int block = range.end - 1;
    const bool any = range.begin < range.end, leads = warp == 0 && lane == 0;
    const auto after = [&](int b) { return b > range.begin ? b - 1 : -1; };
    if (any) {
      last = base.tile.seq_k - 1;
      if constexpr (!kByRows) last = last / paged().box_rows * paged().box_rows;
      find_pages(block);
      load_k(block, after(block));
    }
    for (int w = 0; w < kConfig.shape.warpgroups && leads; ++w) base.load_q(w);
    for (; block > range.begin; --block) {
      load_k(block - 1, after(block - 1));
      load_v(block);
    }
    base.rQ.advance();
    if (leads) base.asked = base.ask(index);
    if (any) {
      pass_pages();
      load_v(block);
    }
  }

  __forceinline__ void announce(Ring<2>& slots) const {
    Ring<2> at = slots;
    if (lane == 0) base.announce(at);
    slots.advance();
  }
  __forceinline__ int next_index() const {
    return __shfl_sync(~0U, lane == 0 ? base.answer(base.asked) : 0, 0);
  }
  /// Queries may be packed; keys are those of the sequence's row of the table.
  __forceinline__ void look_up_lengths() {
    base.tile.seq_q = base.args.seq_q;
    bool behind = false;
    if constexpr (kConfig.lengths == Lengths::packed) {
      behind = base.tile.batch == base.args.sequences;
      base.tile.q_begin = offset_at(base.args.cu_q, base.tile.batch);
      const int q_end = behind ? base.args.q_rows : offset_at(base.args.cu_q, base.tile.batch + 1);
      base.tile.seq_q = min(max(q_end - base.tile.q_begin, 0), base.args.q_rows);
    }
    const int keys = behind ? 0 : base.args.key_lengths[base.tile.batch * base.args.key_lengths_b];
    base.tile.seq_k = min(max(keys, 0), base.args.k_rows);
  }

  /// The first warp.
  __forceinline__ void lead() {
    if (lane == 0) base.begin();
    Ring<2> slots;
    int index = static_cast<int>(blockIdx.x);
    while (index < base.args.tiles) {
      base.tile = base.tile_at(index);
      look_up_lengths();
      const int query = first_query<kConfig>(base.args, base.tile);
      if (kConfig.lengths == Lengths::packed && (query < 0 || query >= base.tile.seq_q)) {
        if (lane == 0) base.asked = base.ask(index);
      } else {
        announce(slots);
        copy_tile(index);
      }
      index = next_index();
    }
    base.tile.block = -1;
    announce(slots);
  }
  /// The others copy what it has announced.
  __forceinline__ void follow() {
    Ring<2> slots;
    for (;;) {
      const int s = static_cast<int>(slots.slot);
      mbarrier_wait(base.shared.tile_full(s), slots.parity);
      load_tile(base.tile, base.shared, s);
      __syncwarp();  // all lanes have read the slot
      if (lane == 0) mbarrier_arrive(base.shared.tile_empty(s));
      slots.advance();
      if (base.tile.block < 0) return;
      copy_tile(0);
    }
  }
  __forceinline__ void run() {
    if (warp == 0) {
      lead();
    } else {
      follow();
    }
  }
};

}  // namespace tilewise::fwd_sm90
