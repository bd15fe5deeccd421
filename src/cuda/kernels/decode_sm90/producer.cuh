/// decode_sm90: the producer, one warp: hands out items and copies K and V of each.
#pragma once

#include "cuda/kernels/decode_sm90/items.cuh"
#include "cuda/kernels/decode_sm90/shared.cuh"
#include "cuda/tile/hopper/tma.cuh"
#include "cuda/tile/sequences.cuh"

namespace tilewise::decode_sm90 {

using namespace tile;

template <Config kConfig>
struct Producer {
  static constexpr int kPanels = kConfig.head_dim / 64, kPanelsV = kConfig.head_dim_v / 64;
  const Args& args;
  const Shared<kConfig> shared;
  const int warp, lane;
  Ring<kConfig.stages> ring;
  Ring<SharedPlan::kItems> slots;
  ItemRequest request;  ///< of warp 0

  /// The page of a key; where K and V are not paged, the batch entry.
  __forceinline__ int page_of(const Item& item, int key) const {
    if constexpr (!kConfig.paged) return item.batch;
    return static_cast<int>(page_row(args.pages, item.batch, key).page);
  }
  /// Its row there.
  __forceinline__ int row_of(int key) const {
    if constexpr (!kConfig.paged) return key;
    return key - tile::page_of(args.pages, key) * args.pages.size;
  }

  // ---- boxes

  /// The page of a box of the item; nothing is read for others.
  __forceinline__ int page_of_box(const Item& item, int box) const {
    const int first = item.begin / kRows, last = (item.end - 1) / kRows;
    return box < first || box > last ? 0 : page_of(item, box * kRows);
  }
  static constexpr int kRows = kConfig.box_rows > 0 ? kConfig.box_rows : kBlockN;
  static constexpr int kInBlock = kBlockN / kRows;  ///< boxes of rows
  using BlockK = Block<kConfig, kConfig.head_dim>;
  using BlockV = Block<kConfig, kConfig.head_dim_v>;
  static constexpr int kBoxes = BlockK::kBoxes + BlockV::kBoxes;  ///< of the same rows
  static constexpr int kBoxBytes = kRows * (kConfig.head_dim + kConfig.head_dim_v) * 2;

  __forceinline__ void copy_box(const Item& item, int place, int which, int row, int page) const {
    const u32 full = shared.full(ring.slot);
    const bool is_k = which < BlockK::kBoxes;
    const int panel = is_k ? which * BlockK::kBeside : (which - BlockK::kBoxes) * BlockV::kBeside;
    const u32 to = (is_k ? shared.k(ring.slot).panel(place * kRows, 0).base
                         : shared.v(ring.slot).panel(place * kRows, 0).base) +
                   static_cast<u32>(panel * BlockK::kPanelBytes);
    const TensorMapBytes* map = is_k ? &args.k_map : &args.v_map;
    if constexpr (kConfig.whole_rows) {
      const int at[4] = {panel, row, item.head, page};
      tma_load_5d(to, map, full, 0, at, args.policy);
    } else {
      tma_load(to, map, full, 64 * panel, item.head, row, page, args.policy);
    }
  }

  /// A lane issues one box of K or V, or some. Lanes hold the pages of 32 boxes of rows, and those
  /// of the next 32 are on their way.
  __forceinline__ void copy_boxes(const Item& item) {
    const int first = item.begin / kRows, last = (item.end - 1) / kRows;
    const int first_block = item.first_block(), end_block = item.end_block();
    const int place = lane % kInBlock;
    int base = first_block * kInBlock;
    int pages = page_of_box(item, base + lane), next = page_of_box(item, base + 32 + lane);
#pragma unroll 1
    for (int block = first_block; block < end_block; ++block) {
      const int begin = block * kInBlock;
      if (begin == base + 32) {
        base += 32;
        pages = next;
        next = page_of_box(item, base + 32 + lane);
      }
      const int page = __shfl_sync(~0U, pages, begin - base + place);
      if (lane == 0) {
        const int boxes = min(begin + kInBlock, last + 1) - max(begin, first);
        mbarrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
        mbarrier_expect(shared.full(ring.slot), static_cast<u32>(boxes * kBoxBytes));
      }
      __syncwarp();  // the place is free, and the bytes are expected before they arrive
      const int box = begin + place;
      if (box >= first && box <= last) {
        for (int which = lane / kInBlock; which < kBoxes; which += 32 / kInBlock)
          copy_box(item, place, which, row_of(box * kRows), page);
      }
      ring.advance();
      request.ask_behind(args, lane, block - first_block, end_block - first_block, kConfig.stages);
    }
  }

  // ---- rows

  /// Rows of a block that a warp copies; its lanes have them twice.
  static constexpr int kWarpRows = kBlockN / kProducerWarps;
  /// The page of the lane's row of a block; nothing is read for rows that the item does not have.
  __forceinline__ int page_of_row(const Item& item, int block) const {
    const int key = block * kBlockN + warp * kWarpRows + lane % kWarpRows;
    return key >= item.begin && key < item.end ? page_of(item, key) : 0;
  }

  /// Eight lanes copy a row of a panel. Rows that the item does not have become zeros.
  __forceinline__ void copy_rows(const Item& item) {
    const unsigned short* gK =
        static_cast<const unsigned short*>(args.k.data) + item.head * args.k.stride_h;
    const unsigned short* gV =
        static_cast<const unsigned short*>(args.v.data) + item.head * args.v.stride_h;
    const int first = item.first_block(), end = item.end_block();
    const int chunk = lane % 8;
    // Pages of this block, and of the two next ones.
    int page = page_of_row(item, first), next = page_of_row(item, first + 1);
#pragma unroll 1
    for (int block = first; block < end; ++block) {
      const int later = page_of_row(item, block + 2);
      const int own = row_of(block * kBlockN + warp * kWarpRows + lane % kWarpRows);
      const i64 rows_k = page * args.k.stride_b + own * args.k.stride_s;
      const i64 rows_v = page * args.v.stride_b + own * args.v.stride_s;
      // NOTE: one lane waits. Another that asked late could miss the phase.
      if (lane == 0) mbarrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
      __syncwarp();
#pragma unroll
      for (int r = 0; r < kWarpRows; r += 4) {
        const int row = warp * kWarpRows + r + lane / 8, key = block * kBlockN + row;
        const i64 k = __shfl_sync(~0U, rows_k, r + lane / 8);
        const i64 v = __shfl_sync(~0U, rows_v, r + lane / 8);
        const bool there = key >= item.begin && key < item.end;
#pragma unroll
        for (int p = 0; p < kPanels; ++p) {
          const int column = 64 * p + 8 * chunk;
          const bool reads = there && column < args.cols_k;
          copy_async_16(shared.k(ring.slot).panel(0, p).address(row, chunk),
                        reads ? gK + k + column : gK, reads ? 16 : 0);
        }
#pragma unroll
        for (int p = 0; p < kPanelsV; ++p) {
          const int column = 64 * p + 8 * chunk;
          const bool reads = there && column < args.cols_v;
          copy_async_16(shared.v(ring.slot).panel(0, p).address(row, chunk),
                        reads ? gV + v + column : gV, reads ? 16 : 0);
        }
      }
      mbarrier_arrive_copies(shared.full(ring.slot));
      ring.advance();
      page = next;
      next = later;
      if (warp == 0) request.ask_behind(args, lane, block - first, end - first, kConfig.stages);
    }
  }

  __forceinline__ void copy(const Item& item) {
    if constexpr (kConfig.box_rows > 0) {
      copy_boxes(item);
    } else {
      copy_rows(item);
    }
  }

  /// The first warp hands out items and copies.
  __forceinline__ void lead() {
    if (kConfig.box_rows > 0 && lane == 0) {
      tma_prefetch_map(&args.k_map);
      tma_prefetch_map(&args.v_map);
    }
    hand_out_items<kConfig.tile_rows()>(*this);
  }
  /// The others copy what it has announced.
  __forceinline__ void follow() {
    for (Item item = next_item(shared, slots, lane); item.batch >= 0;
         item = next_item(shared, slots, lane))
      copy(item);
  }
  __forceinline__ void run() {
    if (warp == 0) {
      lead();
    } else {
      follow();
    }
  }
};

}  // namespace tilewise::decode_sm90
