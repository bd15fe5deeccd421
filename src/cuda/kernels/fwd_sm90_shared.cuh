/// fwd_sm90: what both roles share: addresses in shared memory, barriers, tiles and their ranges of
/// keys.
#pragma once

#include "cuda/kernels/fwd_sm90_args.h"
#include "cuda/tile/mbarrier.cuh"
#include "cuda/tile/order.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

/// Addresses of what SharedPlan lays out. "full": the copies have landed; "empty": the readers are
/// done.
template <Config kConfig>
struct Shared {
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr int kWarpgroups = kConfig.warpgroups, kStages = kConfig.stages;
  u32 base;

  __forceinline__ u32 q(int buffer, int warpgroup) const {
    return base + kPlan.q + buffer * kPlan.q_buffer + warpgroup * kPlan.q_warpgroup;
  }
  __forceinline__ u32 k(int stage) const { return base + kPlan.k + stage * kPlan.k_stage; }
  __forceinline__ u32 v(int stage) const { return base + kPlan.v + stage * kPlan.v_stage; }
  __forceinline__ u32 o(int warpgroup) const {
    return base + kPlan.o + warpgroup * (kConfig.own_o ? kPlan.o_warpgroup : kPlan.q_warpgroup);
  }
  __forceinline__ u32 barrier(int index) const {
    return base + kPlan.barriers + index * kMbarrierBytes;
  }
  __forceinline__ u32 k_full(int stage) const { return barrier(stage); }
  __forceinline__ u32 k_empty(int stage) const { return barrier(kStages + stage); }
  __forceinline__ u32 v_full(int stage) const { return barrier(2 * kStages + stage); }
  __forceinline__ u32 v_empty(int stage) const { return barrier(3 * kStages + stage); }
  __forceinline__ u32 q_full(int buffer, int warpgroup) const {
    return barrier(4 * kStages + buffer * kWarpgroups + warpgroup);
  }
  __forceinline__ u32 q_empty(int buffer, int warpgroup) const {
    return q_full(buffer, warpgroup) + kConfig.q_buffers * kWarpgroups * kMbarrierBytes;
  }
  __forceinline__ u32 tile_full(int slot) const {
    return barrier(4 * kStages + 2 * kConfig.q_buffers * kWarpgroups + slot);
  }
  __forceinline__ u32 tile_empty(int slot) const { return tile_full(slot) + 2 * kMbarrierBytes; }
  __forceinline__ u32 slot(int index) const { return base + kPlan.slots + index * 16; }

  __forceinline__ void init_barriers() const {
    // Every warp of a warpgroup arrives for itself: one warp's wait does not prove that the others
    // have read.
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(k_full(s), 1);
      mbarrier_init(v_full(s), 1);
      mbarrier_init(k_empty(s), 4 * kWarpgroups);
      mbarrier_init(v_empty(s), 4 * kWarpgroups);
    }
    for (int i = 0; i < kConfig.q_buffers * kWarpgroups; ++i) {
      mbarrier_init(q_full(0, i), 1);
      mbarrier_init(q_empty(0, i), kConfig.own_o ? 4 : 1);
    }
    for (int s = 0; s < 2; ++s) {
      mbarrier_init(tile_full(s), 1);
      mbarrier_init(tile_empty(s), 4 * kWarpgroups);
    }
    mbarrier_fence_init();
  }
};

/// A tile as the producer announces it; `block` < 0: no more.
struct Tile {
  int block = -1, batch = 0, head = 0, split = 0;
};

template <Config kConfig>
__forceinline__ Diagonals diagonals(const Args& args) {
  Diagonals d(Positions{}, 0, 0);
  // A constant where nothing is hidden on the left: the ranges fold to a few instructions.
  d.low = kConfig.mask == Mask::both ? args.low : -Positions::kFar;
  d.high = args.high;
  return d;
}

/// A tile whose rows are being finished, and the first row of the thread.
struct Finished {
  Tile tile;
  int row;
};

/// Key blocks of rows row .. row_end-1 of a tile, within its split.
template <Config kConfig>
__forceinline__ BlockRange block_range(const Args& args, int row, int row_end, int split) {
  constexpr int kN = kConfig.block_n;
  BlockRange range;
  if constexpr (kConfig.mask == Mask::none) {
    range.end = (args.seq_k + kN - 1) / kN;
    range.full_end = args.seq_k / kN;
  } else {
    range = key_blocks<kN>(diagonals<kConfig>(args), row, row_end, args.seq_k);
  }
  if constexpr (kConfig.split)
    range.clip(split * args.blocks_per_split, (split + 1) * args.blocks_per_split);
  return range;
}

/// Key blocks of the 64 rows of a warpgroup: what it skips is not in them. Without skip_blocks all
/// blocks of the tile, of which only those inside the full range need no mask.
template <Config kConfig>
__forceinline__ void own_range(BlockRange& own, const Args& args, int row, int split,
                               int tile_begin, int tile_end) {
  own = block_range<kConfig>(args, row, min(row + 64, args.seq_q), split);
  if constexpr (kConfig.skip_blocks) {
    if (row >= args.seq_q) own.end = own.begin;
    if (own.begin >= own.end) own.begin = own.end = tile_begin;
  } else {
    own.begin = tile_begin;
    own.end = tile_end;
  }
}

inline constexpr float kLargest = 3.402823466e38F;
/// From here on a rounded maximum is off by 2^3 and more; P up to 2^(kSlack + 2^2) fits every type.
inline constexpr float kHugeMaximum = 0x1p26F;

}  // namespace tilewise::fwd_sm90
