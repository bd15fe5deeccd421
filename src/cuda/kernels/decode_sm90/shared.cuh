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

/// 64 columns of a block, as one box of 64 rows leaves them.
using Panel = SharedTile<kBlockN, 64>;

/// Addresses of what SharedPlan lays out. "full": the copies have landed; "empty": the readers are
/// done.
template <Config kConfig>
struct Shared {
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr int kStages = kConfig.stages;
  u32 base;

  __forceinline__ Panel k(u32 stage, int panel) const {
    return {base + kPlan.k + stage * kPlan.k_stage + panel * Panel::kBytes};
  }
  __forceinline__ Panel v(u32 stage, int panel) const {
    return {base + kPlan.v + stage * kPlan.v_stage + panel * Panel::kBytes};
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
      mbarrier_init(full(s), kConfig.boxes ? 1 : 32);
      mbarrier_init(empty(s), kWarps);
    }
    for (u32 s = 0; s < SharedPlan::kItems; ++s) {
      mbarrier_init(item_full(s), 1);
      mbarrier_init(item_empty(s), kWarps);
    }
    mbarrier_fence_init();
  }
};

/// `batch` < 0: no more. `part` counts from the entry's first one on.
struct Item {
  int batch = -1, head = 0, row_tile = 0, part = 0, parts = 1, seq_k = 0;
  int begin = 0, end = 0;  ///< keys that some row of the item sees
};

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
