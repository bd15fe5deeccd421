/// decode_sm90: what both roles share: addresses in shared memory, barriers, items.
///
/// An item is one part of one batch entry's keys, one key head, one tile of its query rows. Row r
/// of a key head is query r / group of head r % group of its group.
#pragma once

#include "cuda/kernels/decode_sm90/args.h"
#include "cuda/tile/hopper/mbarrier.cuh"
#include "cuda/tile/key_parts.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::decode_sm90 {

using namespace tile;

/// One of kBeside panels of 64 columns whose rows alternate: row r of panel p is 128-byte line
/// r * kBeside + p, and its 16-byte chunk c lies at chunk c ^ line % 8.
template <int kBeside>
struct AlternatingPanel {
  static_assert(kBeside == 2 || kBeside == 3);
  u32 base;
  int panel;

  /// As SharedTile::lane_address.
  __forceinline__ u32 lane_address(int row, int lane_row, int chunk, int lane_chunk) const {
    // With two panels the lowest bit of a line is the panel.
    const int line = kBeside == 2 ? (2 * lane_row & 7) ^ panel : lane_row * kBeside + panel & 7;
    const u32 at = base + static_cast<u32>(128 * kBeside * lane_row + ((lane_chunk ^ line) << 4));
    return (at ^ static_cast<u32>(chunk << 4)) + static_cast<u32>(128 * (row * kBeside + panel));
  }
  __forceinline__ void load_b(FragmentB<1>& b, int row, int k, int lane) const {
    load_matrix_x4(b.r[0],
                   lane_address(row, (lane & 7) + ((lane >> 4) << 3), 2 * k, (lane >> 3) & 1));
  }
  __forceinline__ void load_b_trans(FragmentB<1>& b, int k, int col, int lane) const {
    load_matrix_trans_x4(
        b.r[0], lane_address(16 * k, (lane & 7) + ((lane >> 3) & 1) * 8, col / 8, lane >> 4));
  }
};

/// K or V of a block in shared memory: as many rows as a box has, in panels of 64 columns with
/// 128-byte swizzle, then the next rows. Panels lie below each other, or panels_beside() of them
/// next to each other, as a box brings them.
template <Config kConfig, int kColumns>
struct Block {
  static constexpr int kRows = kConfig.box_rows == 0 ? kBlockN : kConfig.box_rows;
  static constexpr int kPanels = kColumns / 64;
  static constexpr int kBeside = kConfig.whole_rows ? panels_beside(kPanels) : 1;
  static constexpr int kPanelBytes = SharedTile<kRows, 64>::kBytes;
  static constexpr int kBoxes = kPanels / kBeside;          ///< of the same rows
  static constexpr int kRowsBytes = kPanels * kPanelBytes;  ///< of all columns
  u32 base;

  /// `row`: a multiple of 16. Its rows begin at row % kRows.
  __forceinline__ auto panel(int row, int panel) const {
    const u32 at = base + static_cast<u32>(row / kRows * kRowsBytes);
    if constexpr (kBeside == 1) {
      return SharedTile<kRows, 64>{at + static_cast<u32>(panel * kPanelBytes)};
    } else {
      return AlternatingPanel<kBeside>{
          at + static_cast<u32>(panel / kBeside * kBeside * kPanelBytes), panel % kBeside};
    }
  }
};

/// Addresses of what SharedPlan lays out. "full": the copies have landed; "empty": the readers are
/// done.
template <Config kConfig>
struct Shared {
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr int kStages = kConfig.stages;
  /// Warps that read an announced item: the consumers, and producers that do not announce.
  static constexpr int kReaders = kWarps + (kConfig.box_rows > 0 ? 0 : kProducerWarps - 1);
  u32 base;

  __forceinline__ Block<kConfig, kConfig.head_dim> k(u32 stage) const {
    return {base + kPlan.k + stage * kPlan.k_stage};
  }
  __forceinline__ Block<kConfig, kConfig.head_dim_v> v(u32 stage) const {
    return {base + kPlan.v + stage * kPlan.v_stage};
  }
  /// What a warp leaves to another one of the same rows.
  __forceinline__ u32 merge(int place) const { return base + kPlan.merge + place * kPlan.merged; }
  __forceinline__ u32 barrier(u32 index) const {
    return base + kPlan.barriers + index * kMbarrierBytes;
  }
  __forceinline__ u32 full(u32 stage) const { return barrier(stage); }
  __forceinline__ u32 empty(u32 stage) const { return barrier(kStages + stage); }
  __forceinline__ u32 item_full(u32 slot) const { return barrier(2 * kStages + slot); }
  __forceinline__ u32 item_empty(u32 slot) const { return item_full(slot + SharedPlan::kItems); }
  __forceinline__ u32 item(u32 slot) const { return base + kPlan.items + slot * SharedPlan::kItem; }

  __forceinline__ void init_barriers() const {
    for (u32 s = 0; s < kStages; ++s) {
      mbarrier_init(full(s), kConfig.box_rows > 0 ? 1 : 32 * kProducerWarps);
      mbarrier_init(empty(s), kWarps);
    }
    for (u32 s = 0; s < SharedPlan::kItems; ++s) {
      mbarrier_init(item_full(s), 1);
      mbarrier_init(item_empty(s), kReaders);
    }
    mbarrier_fence_init();
  }
};

/// `batch` < 0: no more. `part` counts from the entry's first one on.
struct Item {
  int batch = -1, head = 0, row_tile = 0, part = 0, parts = 1, seq_k = 0;
  int begin = 0, end = 0;  ///< keys that some row of the item sees

  /// Blocks of keys. NOTE: both roles ask here: an item without keys may begin inside of a block.
  __forceinline__ int first_block() const { return begin / kBlockN; }
  __forceinline__ int end_block() const {
    return begin < end ? (end + kBlockN - 1) / kBlockN : first_block();
  }
};

/// Announces an item to the warps that read it; called by a warp.
template <class AnyShared>
__forceinline__ void announce_item(const AnyShared& shared, Ring<SharedPlan::kItems>& slots,
                                   const Item& item, int lane) {
  if (lane == 0) {
    mbarrier_wait(shared.item_empty(slots.slot), slots.parity ^ 1);
    const u32 to = shared.item(slots.slot);
    const int words[8] = {item.batch, item.head,  item.row_tile, item.part,
                          item.parts, item.seq_k, item.begin,    item.end};
#pragma unroll
    for (int i = 0; i < 8; ++i) store_shared_4(to + 4 * i, static_cast<u32>(words[i]));
    mbarrier_arrive(shared.item_full(slots.slot));  // releases the stores to the readers
  }
  slots.advance();
}

/// The next announced item, read by a warp.
template <class AnyShared>
__forceinline__ Item next_item(const AnyShared& shared, Ring<SharedPlan::kItems>& slots, int lane) {
  mbarrier_wait(shared.item_full(slots.slot), slots.parity);
  const u32 from = shared.item(slots.slot);
  const Bytes16 a = load_shared_16(from), b = load_shared_16(from + 16);
  __syncwarp();  // all lanes have read
  if (lane == 0) mbarrier_arrive(shared.item_empty(slots.slot));
  slots.advance();
  return {static_cast<int>(a.x), static_cast<int>(a.y), static_cast<int>(a.z),
          static_cast<int>(a.w), static_cast<int>(b.x), static_cast<int>(b.y),
          static_cast<int>(b.z), static_cast<int>(b.w)};
}

template <Config kConfig>
inline constexpr int kTileRows = 16 * kConfig.row_warps;

/// Keys of an item whose entry, part and row tile are known.
template <Config kConfig>
__forceinline__ void find_keys(const Args& args, const PartRange& range, Item& item) {
  const Diagonals d(args.keys.positions, args.keys.seq_q, item.seq_k);
  const int row = item.row_tile * kTileRows<kConfig>;
  const int last = min(row + kTileRows<kConfig>, args.keys.seq_q * args.group) - 1;
  const int part = (range.first + item.part) * args.keys.keys;
  item.begin = max(max(0, row / args.group + d.low), part);
  item.end = min(min(item.seq_k, last / args.group + d.high), part + args.keys.keys);
  item.end = max(item.begin, item.end);
}

}  // namespace tilewise::decode_sm90
