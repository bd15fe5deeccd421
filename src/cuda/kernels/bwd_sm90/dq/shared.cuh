/// bwd_dq_sm90: what the roles share: addresses in shared memory, barriers, tiles and their ranges
/// of keys.
#pragma once

#include "cuda/kernels/bwd_sm90/dq/args.h"
#include "cuda/kernels/bwd_sm90/lengths.cuh"
#include "cuda/tile/hopper/mbarrier.cuh"
#include "cuda/tile/hopper/order.cuh"

namespace tilewise::bwd_dq_sm90 {

using namespace tile;
using bwd_sm90::entry_of;
using bwd_sm90::keys_of;
using bwd_sm90::kPacked;
using bwd_sm90::queries_of;

/// Addresses of what SharedPlan lays out. "full": the copies have landed; "empty": the readers are
/// done.
template <Config kConfig>
struct Shared {
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr u32 kSlotBytes = kConfig.ragged() ? 32 : 16;
  static constexpr u32 kStagesK = kConfig.k_stages, kStagesV = kConfig.v_stages;
  static constexpr u32 kRows = 2 * kStagesK + 2 * kStagesV;  ///< first barrier of rows
  u32 base;

  __forceinline__ u32 q(int warpgroup) const { return base + kPlan.q + warpgroup * kPlan.columns; }
  __forceinline__ u32 d_o(int warpgroup) const {
    return base + kPlan.d_o + warpgroup * kPlan.columns_v;
  }
  __forceinline__ u32 k(u32 stage) const { return base + kPlan.k + stage * kPlan.columns; }
  __forceinline__ u32 v(u32 stage) const { return base + kPlan.v + stage * kPlan.columns_v; }
  __forceinline__ u32 barrier(u32 index) const {
    return base + kPlan.barriers + index * kMbarrierBytes;
  }
  __forceinline__ u32 k_full(u32 stage) const { return barrier(stage); }
  __forceinline__ u32 k_empty(u32 stage) const { return barrier(kStagesK + stage); }
  __forceinline__ u32 v_full(u32 stage) const { return barrier(2 * kStagesK + stage); }
  __forceinline__ u32 v_empty(u32 stage) const { return barrier(2 * kStagesK + kStagesV + stage); }
  __forceinline__ u32 q_full(int warpgroup) const { return barrier(kRows + warpgroup); }
  __forceinline__ u32 q_empty(int warpgroup) const { return barrier(kRows + 2 + warpgroup); }
  __forceinline__ u32 do_full(int warpgroup) const { return barrier(kRows + 4 + warpgroup); }
  __forceinline__ u32 do_empty(int warpgroup) const { return barrier(kRows + 6 + warpgroup); }
  __forceinline__ u32 tile_full(u32 slot) const { return barrier(kRows + 8 + slot); }
  __forceinline__ u32 tile_empty(u32 slot) const { return barrier(kRows + 10 + slot); }
  __forceinline__ u32 slot(u32 index) const { return base + kPlan.slots + index * kSlotBytes; }

  /// dQ is staged in dO's place, where it fits: the next tile begins with Q.
  static constexpr bool kStagedInDo = kPlan.columns_v >= kPlan.columns;
  __forceinline__ u32 staged(int w) const { return kStagedInDo ? d_o(w) : q(w); }
  __forceinline__ u32 staged_empty(int w) const { return kStagedInDo ? do_empty(w) : q_empty(w); }
  /// The other of the two places, which is free when the last products have read it.
  __forceinline__ u32 read_empty(int w) const { return kStagedInDo ? q_empty(w) : do_empty(w); }

  __forceinline__ void init_barriers() const {
    // Every warp arrives for itself: one warp's wait does not prove that the others have read.
    for (u32 s = 0; s < kStagesK; ++s) {
      mbarrier_init(k_full(s), 1);
      mbarrier_init(k_empty(s), 4 * kWarpgroups);
    }
    for (u32 s = 0; s < kStagesV; ++s) {
      mbarrier_init(v_full(s), 1);
      mbarrier_init(v_empty(s), 4 * kWarpgroups);
    }
    for (int w = 0; w < kWarpgroups; ++w) {
      mbarrier_init(q_full(w), 1);
      mbarrier_init(q_empty(w), 4);
      mbarrier_init(do_full(w), 1);
      mbarrier_init(do_empty(w), 4);
    }
    for (int s = 0; s < 2; ++s) {
      mbarrier_init(tile_full(s), 1);
      mbarrier_init(tile_empty(s), 4 * kWarpgroups);
    }
    mbarrier_fence_init();
  }
};

/// A tile as the producer announces it; `block` < 0: no more. Packed: `batch` is the sequence,
/// `block` is of it. The lengths, and where the sequence begins in the packed tensors, only where
/// Args does not say.
struct Tile {
  int block = -1, batch = 0, head = 0;
  int seq_q = 0, seq_k = 0, q_begin = 0, k_begin = 0;
};

template <Config kConfig>
__forceinline__ const DeviceLengths& ragged(const Args& args) {
  static_assert(kConfig.ragged());
  return static_cast<const RaggedArgs&>(args).of;
}
/// Coordinates beside the column of a sequence's row of queries, or of keys, in a map whose row
/// axis comes twice: see tile::Offsets.
template <Config kConfig>
__forceinline__ void query_coordinates(int (&c)[4], const Args& args, const Tile& tile, int row) {
  c[0] = tile.head;
  // No box may lie wholly behind the sequence: the last row stands for it, and nothing is stored.
  c[1] = ragged<kConfig>(args).q_rows - tile.seq_q + min(row, tile.seq_q - 1);
  c[2] = tile.seq_q + tile.q_begin;
  c[3] = 0;
}
template <Config kConfig>
__forceinline__ void key_coordinates(int (&c)[4], const Args& args, const Tile& tile, int head,
                                     int row) {
  c[0] = head;
  c[1] = ragged<kConfig>(args).k_rows - tile.seq_k + row;
  c[2] = tile.seq_k + tile.k_begin;
  c[3] = entry_of<kConfig>(tile);
}

template <Config kConfig>
__forceinline__ Diagonals diagonals(const Args& args, const Tile& tile) {
  const int shift = kConfig.ragged() ? tile.seq_k - queries_of<kConfig>(args, tile) : 0;
  Diagonals d = mask_diagonals<kConfig.mask>(args.low + shift, args.high + shift);
  if constexpr (kConfig.ragged() && kConfig.mask != Mask::none)
    d.high = min(d.high, ragged<kConfig>(args).top);
  return d;
}

/// Key blocks that queries query .. query+rows-1 see.
template <Config kConfig>
__forceinline__ BlockRange key_range(const Args& args, const Tile& tile, int query, int rows) {
  BlockRange range;
  const int seq_q = queries_of<kConfig>(args, tile), seq_k = keys_of<kConfig>(args, tile);
  if (query >= seq_q) return range;
  if constexpr (kConfig.mask == Mask::none) {
    range.end = (seq_k + kBlockN - 1) / kBlockN;
    range.full_end = seq_k / kBlockN;
  } else {
    range =
        key_blocks<kBlockN>(diagonals<kConfig>(args, tile), query, min(query + rows, seq_q), seq_k);
  }
  return range;
}

}  // namespace tilewise::bwd_dq_sm90
