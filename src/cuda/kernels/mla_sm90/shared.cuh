/// mla_sm90: what the roles share: addresses in shared memory, barriers. Items are those of
/// decode_sm90: one part of one entry's keys, one key head, one tile of 64 rows.
#pragma once

#include "cuda/kernels/decode_sm90/item.cuh"
#include "cuda/kernels/mla_sm90/args.h"
#include "cuda/tile/hopper/tma.cuh"
#include "cuda/tile/hopper/wgmma.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::mla_sm90 {

using namespace tile;
using decode_sm90::Item;
using decode_sm90::ItemRows;
using decode_sm90::next_item;
using decode_sm90::RowResult;

template <bool kFew>
struct PlanOf {
  using Type = SharedPlan;
};
template <>
struct PlanOf<true> {
  using Type = FewPlan;
};

/// Addresses of what SharedPlan lays out. "full": the copies have landed; "empty": the readers are
/// done.
template <Config kConfig>
struct Shared {
  using Plan = typename PlanOf<kConfig.few>::Type;
  static constexpr Plan kPlan{};
  /// Warps that read an announced item: the consumers, and those that copy Q.
  static constexpr int kConsumers = 4 * kWarpgroups, kQueryWarps = 3;
  static constexpr u32 kFirst = (1 + kPieces) * kStages;  ///< barrier that is no stage's
  u32 base;

  __forceinline__ u32 q() const { return base + kPlan.q; }
  __forceinline__ u32 k(u32 stage) const { return base + kPlan.k + stage * Plan::kStage; }
  /// What a warp leaves to the warp of the same rows in the other warpgroup: P of a block, and the
  /// maxima that it was taken against.
  __forceinline__ u32 passed(int warp) const { return base + kPlan.passed + warp * Plan::kPassed; }
  __forceinline__ u32 maxima(int warp) const { return base + kPlan.maxima + warp * Plan::kMaxima; }
  /// Sums of P over the blocks of a warpgroup. `turn` alternates between items: the other
  /// warpgroup may still read those of the item before.
  __forceinline__ u32 sums(u32 turn, int warpgroup, int warp) const {
    return base + kPlan.sums + ((turn * kWarpgroups + warpgroup) * 4 + warp) * Plan::kSums;
  }
  __forceinline__ u32 barrier(u32 index) const {
    return base + kPlan.barriers + index * kMbarrierBytes;
  }
  /// One piece of the columns has come.
  __forceinline__ u32 full(u32 stage, int piece) const { return barrier(stage * kPieces + piece); }
  __forceinline__ u32 empty(u32 stage) const { return barrier(kStages * kPieces + stage); }
  __forceinline__ u32 q_full() const { return barrier(kFirst); }
  __forceinline__ u32 q_empty() const { return barrier(kFirst + 1); }
  __forceinline__ u32 item_full(u32 slot) const { return barrier(kFirst + 2 + slot); }
  __forceinline__ u32 item_empty(u32 slot) const { return item_full(slot + Plan::kItems); }
  /// P of the warpgroup's warp has been left.
  __forceinline__ u32 p_full(int warpgroup, int warp) const {
    return barrier(kFirst + 2 + 2 * Plan::kItems + 4 * warpgroup + warp);
  }
  __forceinline__ u32 item(u32 slot) const { return base + kPlan.items + slot * Plan::kItem; }

  __forceinline__ void init_barriers() const {
    // Every warp arrives for itself: one warp's wait does not prove that the others have read.
    for (u32 s = 0; s < kStages; ++s) {
      for (int piece = 0; piece < kPieces; ++piece) mbarrier_init(full(s, piece), 1);
      mbarrier_init(empty(s), kConfig.few ? 4 : kConsumers);
    }
    mbarrier_init(q_full(), kQueryWarps);
    mbarrier_init(q_empty(), kConsumers);
    for (u32 s = 0; s < Plan::kItems; ++s) {
      mbarrier_init(item_full(s), 1);
      mbarrier_init(item_empty(s), kConsumers + kQueryWarps);
    }
    for (int warp = 0; warp < kConsumers; ++warp) mbarrier_init(p_full(0, warp), 1);
    mbarrier_fence_init();
  }

  /// All columns of a stage's block have come.
  __forceinline__ void wait_keys(u32 stage, u32 parity) const {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) mbarrier_wait(full(stage, piece), parity);
  }
};

/// Bytes from one panel of 64 columns to the next, in a box.
inline constexpr u32 kBoxPanel = kBoxRows * kPanelRowBytes;
/// Eight keys of a block lie a box apart; sixteen are a step of O's product.
inline constexpr u32 kStepKeys = 2 * Sizes::kBox / 16;

/// Stage and phase of the n-th block of all items.
__forceinline__ u32 stage_of(u32 n) { return n % kStages; }
__forceinline__ u32 parity_of(u32 n) { return n / kStages % 2; }

/// Keys of the n-th block, from `key` on, that the item has not hold anything: zeros in their
/// place, for 0 times a NaN would be one. By the four warps of a warpgroup. CONTRACT 10
template <Config kConfig>
__forceinline__ void clear_hidden(const Shared<kConfig>& shared, const Item& item, int key, u32 n,
                                  int warp, int lane) {
  shared.wait_keys(stage_of(n), parity_of(n));
  constexpr int kChunks = kHeadDimV / 8;
#pragma unroll 1
  for (int i = 32 * warp + lane; i < kBlockN * kChunks; i += 128) {
    const int row = i / kChunks, chunk = i % kChunks;
    if (key + row >= item.begin && key + row < item.end) continue;
    store_shared_16(shared.k(stage_of(n)) + row / kBoxRows * Sizes::kBox + chunk / 8 * kBoxPanel +
                        row % kBoxRows * kPanelRowBytes + chunk % 8 * 16,
                    0.0F, 0.0F, 0.0F, 0.0F);
  }
  fence_async_shared();
}

__forceinline__ float as_float(u32 bits) { return __int_as_float(static_cast<int>(bits)); }
__forceinline__ u32 as_bits(float x) { return static_cast<u32>(__float_as_int(x)); }

}  // namespace tilewise::mla_sm90
