/// mla_sm90: the roles that copy: a warp that hands out items and copies the blocks of keys of
/// each, and three that copy its queries.
#pragma once

#include "cuda/kernels/decode_sm90/items.cuh"
#include "cuda/kernels/mla_sm90/shared.cuh"
#include "cuda/tile/hopper/tma.cuh"
#include "cuda/tile/sequences.cuh"

namespace tilewise::mla_sm90 {

using namespace tile;

template <Config kConfig>
struct Producer {
  static constexpr int kBoxes = kBlockN / kBoxRows;  ///< of a block and a piece
  static constexpr int kPiecePanels = kHeadDim / 64 / kPieces;
  static_assert(kPieces * kBoxes <= 32);
  const Args& args;
  const Shared<kConfig> shared;
  const int lane;
  Ring<kStages> ring;
  Ring<Sizes::kItems> slots;
  decode_sm90::ItemRequest request;

  /// The page of a box of the item; nothing is read for others. Where K is not paged, the batch
  /// entry.
  __forceinline__ int page_of_box(const Item& item, int box) const {
    if constexpr (!kConfig.paged) return item.batch;
    const int first = item.begin / kBoxRows, last = (item.end - 1) / kBoxRows;
    if (box < first || box > last) return 0;
    return static_cast<int>(page_row(args.pages, item.batch, box * kBoxRows).page);
  }
  /// The row there of its first key.
  __forceinline__ int row_of_box(int box) const {
    const int key = box * kBoxRows;
    if constexpr (!kConfig.paged) return key;
    return key - page_of(args.pages, key) * args.pages.size;
  }

  /// A lane issues one piece of a box. Lanes hold the pages of 32 boxes, and those of the next 32
  /// are on their way.
  __forceinline__ void copy(const Item& item) {
    const int first = item.begin / kBoxRows, last = (item.end - 1) / kBoxRows;
    const int first_block = item.first_block(), end_block = item.end_block();
    int base = first_block * kBoxes;
    int pages = page_of_box(item, base + lane), next = page_of_box(item, base + 32 + lane);
#pragma unroll 1
    for (int block = first_block; block < end_block; ++block) {
      const int begin = block * kBoxes;
      if (begin == base + 32) {
        base += 32;
        pages = next;
        next = page_of_box(item, base + 32 + lane);
      }
      const int page = __shfl_sync(~0U, pages, begin - base + lane % kBoxes);
      const int box = begin + lane % kBoxes, piece = lane / kBoxes;
      const bool copies = piece < kPieces && box >= first && box <= last;
      const int at[4] = {row_of_box(box), piece * kPiecePanels, item.head, page};
      if (lane == 0) {
        const int boxes = min(begin + kBoxes, last + 1) - max(begin, first);
        mbarrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          mbarrier_expect(shared.full(ring.slot, p),
                          static_cast<u32>(boxes * (Sizes::kBox / kPieces)));
        }
      }
      __syncwarp();  // the place is free, and the bytes are expected before they arrive
      if (copies) {
        tma_load_5d(
            shared.k(ring.slot) + lane % kBoxes * Sizes::kBox + piece * (Sizes::kBox / kPieces),
            &args.k_map, shared.full(ring.slot, piece), 0, at, args.policy);
      }
      ring.advance();
      request.ask_behind(args, lane, block - first_block, end_block - first_block, kStages);
    }
  }

  __forceinline__ void run() {
    if (lane == 0) tma_prefetch_map(&args.k_map);
    decode_sm90::hand_out_items<kRows>(*this);
  }
};

/// Q of an item: rows of 576 columns to panels of 64, by three warps. Rows that it has not become
/// zeros.
template <Config kConfig>
struct QueryCopier {
  using Plan = typename Shared<kConfig>::Plan;
  static constexpr int kTileRows = Plan::kPanel / 128;
  static constexpr int kQueryWarps = Shared<kConfig>::kQueryWarps;
  const Args& args;
  const Shared<kConfig> shared;
  const int warp, lane;
  u32 parity = 0;
  Ring<Sizes::kItems> slots;

  /// A warp copies a row at a time.
  __forceinline__ void copy(const Item& item) const {
    constexpr int kChunks = kHeadDim / 8;
    const unsigned short* q = static_cast<const unsigned short*>(args.q.data) +
                              item.batch * args.q.stride_b +
                              item.head * args.group * args.q.stride_h + 8 * lane;
    const int first = item.row_tile * kRows, rows = args.keys.seq_q * args.group;
#pragma unroll 2
    for (int row = warp; row < kTileRows; row += kQueryWarps) {
      const int query = (first + row) / args.group, head = first + row - query * args.group;
      const bool exists = first + row < rows;
      const unsigned short* from =
          exists ? q + query * args.q.stride_s + head * args.q.stride_h : q;
#pragma unroll
      for (int part = 0; part < (kChunks + 31) / 32; ++part) {
        const int chunk = 32 * part + lane;
        if (chunk >= kChunks) continue;
        const SharedTile<kTileRows, 64> panel{shared.q() + chunk / 8 * Plan::kPanel};
        copy_async_16(panel.address(row, chunk % 8), from + 256 * part, exists ? 16 : 0);
      }
    }
    copy_async_commit();
    copy_async_wait<0>();
  }

  __forceinline__ void run() {
    for (Item item = next_item(shared, slots, lane); item.batch >= 0;
         item = next_item(shared, slots, lane)) {
      if (lane == 0) mbarrier_wait(shared.q_empty(), parity ^ 1);
      __syncwarp();
      parity ^= 1;
      copy(item);
      fence_async_shared();  // the products read what these threads have written
      __syncwarp();
      if (lane == 0) mbarrier_arrive(shared.q_full());
    }
  }
};

}  // namespace tilewise::mla_sm90
