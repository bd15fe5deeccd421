/// decode_sm90: what both roles share: K and V of a block in shared memory, addresses, barriers.
#pragma once

#include "cuda/kernels/decode_sm90/item.cuh"
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

}  // namespace tilewise::decode_sm90
