/// decode_sm90: the producer, one warp: hands out items and copies K and V of each.
#pragma once

#include "cuda/kernels/decode_sm90/items.cuh"
#include "cuda/tile/hopper/tile_counter.cuh"
#include "cuda/tile/hopper/tma.cuh"
#include "cuda/tile/sequences.cuh"

namespace tilewise::decode_sm90 {

using namespace tile;

template <Config kConfig>
struct Producer {
  static constexpr int kPanels = kConfig.head_dim / 64, kPanelsV = kConfig.head_dim_v / 64;
  const Args& args;
  const Shared<kConfig> shared;
  const int lane;
  Ring<kConfig.stages> ring;
  Ring<SharedPlan::kItems> slots;

  __forceinline__ void announce(const Item& item) {
    if (lane == 0) {
      mbarrier_wait(shared.item_empty(slots.slot), slots.parity ^ 1);
      const u32 to = shared.item(slots.slot);
      const int words[8] = {item.batch, item.head,  item.row_tile, item.part,
                            item.parts, item.seq_k, item.begin,    item.end};
#pragma unroll
      for (int i = 0; i < 8; ++i) store_shared_4(to + 4 * i, static_cast<u32>(words[i]));
      mbarrier_arrive(shared.item_full(slots.slot));  // releases the stores to the consumers
    }
    slots.advance();
  }

  /// The page of a key; where K and V are not paged, the batch entry.
  __forceinline__ int page_of(const Item& item, int key) const {
    if constexpr (!kConfig.paged) return item.batch;
    return static_cast<int>(page_row(args.pages, item.batch, key).page);
  }
  /// Its row there.
  __forceinline__ int row_of(int key) const {
    if constexpr (!kConfig.paged) return key;
    const u64 page = static_cast<u64>(key) * args.pages.multiplier >> args.pages.shift;
    return key - static_cast<int>(page) * args.pages.size;
  }

  // ---- boxes

  /// The page of a box of the item; nothing is read for others.
  __forceinline__ int page_of_box(const Item& item, int box) const {
    const int first = item.begin >> args.box_shift, end = item.end - 1 >> args.box_shift;
    return box < first || box > end ? 0 : page_of(item, box << args.box_shift);
  }

  /// A lane issues the boxes of one place in the block, for some of the panels. Lanes hold the
  /// pages of 32 boxes, and those of the next 32 are on their way.
  __forceinline__ void copy_boxes(const Item& item) {
    const int first = item.begin >> args.box_shift, last = item.end - 1 >> args.box_shift;
    const int in_block = 6 - args.box_shift;  // log2 of a block's boxes
    const int place = lane & (1 << in_block) - 1;
    const u64 policy = args.once ? kEvictFirst : kEvictLast;
    int base = item.begin / kBlockN << in_block;
    int pages = page_of_box(item, base + lane), next = page_of_box(item, base + 32 + lane);
#pragma unroll 1
    for (int block = item.begin / kBlockN; block * kBlockN < item.end; ++block) {
      const int begin = block << in_block, end = begin + (1 << in_block);
      if (begin == base + 32) {
        base += 32;
        pages = next;
        next = page_of_box(item, base + 32 + lane);
      }
      const int page = __shfl_sync(~0U, pages, begin - base + place);
      const u32 full = shared.full(ring.slot);
      if (lane == 0) {
        const int boxes = min(end, last + 1) - max(begin, first);
        mbarrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
        mbarrier_expect(
            full, static_cast<u32>(boxes * (kPanels + kPanelsV)) * Panel::kPitch << args.box_shift);
      }
      __syncwarp();  // the place is free, and the bytes are expected before they arrive
      const int box = begin + place;
      if (box >= first && box <= last) {
        const int row = row_of(box << args.box_shift);
        const u32 at = static_cast<u32>(place << args.box_shift) * Panel::kPitch;
        for (int panel = lane >> in_block; panel < kPanels + kPanelsV; panel += 32 >> in_block) {
          const bool is_k = panel < kPanels;
          const int p = is_k ? panel : panel - kPanels;
          const u32 to = is_k ? shared.k(ring.slot, p).base : shared.v(ring.slot, p).base;
          tma_load(to + at, is_k ? &args.k_map : &args.v_map, full, 64 * p, item.head, row, page,
                   policy);
        }
      }
      ring.advance();
    }
  }

  // ---- rows

  /// Pages of the lane's two rows of a block, `lane` and 32 + `lane`; nothing is read for rows that
  /// the item does not have.
  __forceinline__ void pages_of_rows(int (&pages)[2], const Item& item, int block) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = block * kBlockN + 32 * half + lane;
      pages[half] = key >= item.begin && key < item.end ? page_of(item, key) : 0;
    }
  }

  /// Eight lanes copy a row of a panel. Rows that the item does not have become zeros.
  __forceinline__ void copy_rows(const Item& item) {
    const unsigned short* gK =
        static_cast<const unsigned short*>(args.k.data) + item.head * args.k.stride_h;
    const unsigned short* gV =
        static_cast<const unsigned short*>(args.v.data) + item.head * args.v.stride_h;
    const int chunk = lane % 8;
    int block = item.begin / kBlockN, next[2];
    pages_of_rows(next, item, block);
#pragma unroll 1
    for (; block * kBlockN < item.end; ++block) {
      i64 rows_k[2], rows_v[2];  // where the lane's rows begin
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(block * kBlockN + 32 * half + lane);
        rows_k[half] = next[half] * args.k.stride_b + row * args.k.stride_s;
        rows_v[half] = next[half] * args.v.stride_b + row * args.v.stride_s;
      }
      pages_of_rows(next, item, block + 1);
      // NOTE: one lane waits. Another that asked late could miss the phase.
      if (lane == 0) mbarrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
      __syncwarp();
#pragma unroll
      for (int r = 0; r < kBlockN; r += 4) {
        const int row = r + lane / 8, key = block * kBlockN + row;
        const i64 k = __shfl_sync(~0U, rows_k[r / 32], row % 32);
        const i64 v = __shfl_sync(~0U, rows_v[r / 32], row % 32);
        const bool there = key >= item.begin && key < item.end;
#pragma unroll
        for (int p = 0; p < kPanels; ++p) {
          const int column = 64 * p + 8 * chunk;
          const bool reads = there && column < args.cols_k;
          copy_async_16(shared.k(ring.slot, p).address(row, chunk), reads ? gK + k + column : gK,
                        reads ? 16 : 0);
        }
#pragma unroll
        for (int p = 0; p < kPanelsV; ++p) {
          const int column = 64 * p + 8 * chunk;
          const bool reads = there && column < args.cols_v;
          copy_async_16(shared.v(ring.slot, p).address(row, chunk), reads ? gV + v + column : gV,
                        reads ? 16 : 0);
        }
      }
      mbarrier_arrive_copies(shared.full(ring.slot));
      ring.advance();
    }
  }

  __forceinline__ void run() {
    if (lane == 0) {
      if constexpr (kConfig.boxes) {
        tma_prefetch_map(&args.k_map);
        tma_prefetch_map(&args.v_map);
      }
      claim(args.counter);
    }
    Items<kConfig> items(args, lane);
    int index = static_cast<int>(blockIdx.x);
    while (index < items.total) {
      const Item item = items.at(index);
      announce(item);
      // The answer is on its way while the item is copied.
      const u64 asked = lane == 0 ? ask(args.counter) : 0;
      if constexpr (kConfig.boxes) {
        copy_boxes(item);
      } else {
        copy_rows(item);
      }
      const int next = lane == 0 ? answer(args.counter, asked, items.total) : 0;
      index = __shfl_sync(~0U, next, 0);
    }
    announce({});
  }
};

}  // namespace tilewise::decode_sm90
