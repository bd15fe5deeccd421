/// bwd_short_sm90: a warp of those who compute: what a pass over queries and one over keys share.
#pragma once

#include "cuda/kernels/bwd_short_sm90/statistics.cuh"
#include "cuda/kernels/bwd_sm90/large_dim_sums.cuh"
#include "cuda/kernels/bwd_sm90/rows.cuh"
#include "cuda/tile/hopper/ptx/warpgroup.cuh"

namespace tilewise::bwd_short_sm90 {

using namespace tile;
using bwd_sm90::pack_planes;
using bwd_sm90::panel_step;

template <Config kConfig>
struct Worker {
  static constexpr int kD = kConfig.head_dim, kDv = kConfig.head_dim_v;
  static constexpr Element kElement = kConfig.element;
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr u32 kDelta = kPlan.known;  ///< from an offset to its delta
  using Product = Wgmma<kElement, kRows>;

  const Args& args;
  const Shared<kConfig> shared;
  const int warpgroup, thread, warp, lane;  ///< thread, warp: of the warpgroup
  Ring<kConfig.stages> stages;
  Ring<kConfig.halves() ? kConfig.stages_v : 1> stages_v;
  Ring<kConfig.kept> kept;
  Announced<kConfig> announced;
  Job job;
  u32 buffer = 0;      ///< of the job's statistics
  u32 statistics = 0;  ///< where the offset of a head's row 0 lies, or would
  u32 owed = 0;        ///< barrier of kept rows that a store may still read, or 0

  __forceinline__ Worker(const Args& a, u32 shared_base, int group)
      : args(a),
        shared{shared_base},
        warpgroup(group),
        thread(static_cast<int>(threadIdx.x) & 127),
        warp(thread / 32),
        lane(thread % 32) {}

  // ---- hand-over

  __forceinline__ void sync_warpgroup() const { named_barrier_sync(8 + warpgroup, 128); }
  __forceinline__ void sync_consumers() const { named_barrier_sync(1, 256); }
  __forceinline__ void release(u32 barrier) const {
    if (lane == 0) mbarrier_arrive(barrier);
  }
  /// For K, or Q; for V, or dO, too.
  __forceinline__ void wait_first() const {
    mbarrier_wait(shared.stage_full(stages.slot), stages.parity);
  }
  __forceinline__ void wait_second() const {
    if constexpr (kConfig.halves()) mbarrier_wait(shared.full_v(stages_v.slot), stages_v.parity);
  }
  __forceinline__ void wait_stage() const {
    wait_first();
    wait_second();
  }
  __forceinline__ u32 second() const {
    return shared.stage_v(kConfig.halves() ? stages_v.slot : stages.slot);
  }
  /// V, or dO, of the block at hand is not needed any more: of halves it may go.
  __forceinline__ void leave_second() {
    if constexpr (!kConfig.halves()) return;
    release(shared.empty_v(stages_v.slot));
    stages_v.advance();
  }
  __forceinline__ void leave_stage(u32 index) const { release(shared.stage_empty(index)); }

  /// Lets go of what the pass before kept, which its stores have read by now.
  __forceinline__ void settle() {
    if (owed == 0) return;
    if (thread == 0) bulk_wait_read();
    release(owed);
    owed = 0;
  }
  /// The pass is over but for its stores, which this warpgroup's first thread has begun: its warp
  /// lets go of the kept rows later, when nobody has to wait for that.
  __forceinline__ void leave_kept() {
    settle();
    if (warp == 0) {
      owed = shared.kept_empty(kept.slot);
      // The next pass cannot begin before.
      if constexpr (kConfig.kept == 1) settle();
    } else {
      release(shared.kept_empty(kept.slot));
    }
    kept.advance();
  }

  __forceinline__ void find_statistics(int g) {
    statistics = shared.offset(buffer) + 4 * known_of<kConfig>(args, job).row_of(g, 0);
  }
  __forceinline__ u32 offset_of(int row) const { return statistics + 4 * row; }

  __forceinline__ int row(int first, int r) const { return first + warp * 16 + lane / 4 + 8 * r; }

  /// A block of the pass that this warpgroup's rows do not see.
  __forceinline__ void skip() {
    wait_stage();
    __syncwarp();  // no lane waits any more: lane 0 lets the stage be filled again
    leave_second();
    leave_stage(stages.slot);
    stages.advance();
  }

  // ---- products

  /// A of kept rows, B of rows that pass by, both over a head dim
  template <int kColumns>
  __forceinline__ void issue_scores(float (&r)[kRows / 2], u32 rows, u32 others) const {
    u64 a = panel_descriptor(rows, 16);
    const u64 b = panel_descriptor(others, 16);
    // With one buffer they are the same in every step: kept from one to the next they would spill.
    if constexpr (kConfig.kept == 1 || kConfig.halves()) a = opaque(a);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i) {
      Product::multiply_shared(r, a + panel_step<kRows>(i), b + panel_step<kRows>(i), i != 0);
    }
    wgmma_commit();
  }
  /// (F1) S or its transpose
  __forceinline__ void issue_s(float (&r)[kRows / 2]) const {
    issue_scores<kD>(r, shared.kept(kept.slot, warpgroup), shared.stage(stages.slot));
  }
  /// (B4) dP or its transpose
  __forceinline__ void issue_dp(float (&r)[kRows / 2]) const {
    issue_scores<kDv>(r, shared.kept_v(kept.slot, warpgroup), second());
  }
  /// sums += A B, A in registers, in two planes or one; B of rows that pass by
  template <bool kPlanes, int kColumns, int kLow>
  __forceinline__ void issue_sums(bwd_sm90::LargeDimSums<kColumns>& sums, const u32 (&a)[kRows / 4],
                                  const u32 (&low)[kLow], u32 rows) const {
    const u64 b = panel_descriptor(rows, SharedPlan::kPanel);
    wgmma_fence();
    sums.template add_product<kElement>(a, b);
    if constexpr (kPlanes) sums.template add_product<kElement>(low, b);
    wgmma_commit();
  }
  // ---- to memory, by way of the warpgroup's own rows of what a pass keeps

  /// One thread: staged rows of a panel.
  template <int kColumns, class Store>
  __forceinline__ void store(u32 place, Store store_panel) const {
    for (int p = 0; p < SharedPlan::panels(kColumns); ++p)
      store_panel(place + p * SharedPlan::kPanel, p * kPanelColumns);
  }
};

/// Two elements of dS to a word, of two planes or one.
template <Config kConfig, int kLow>
__forceinline__ void pack_gradients(int i, float a, float b, u32 (&words)[kRows / 4],
                                    u32 (&low)[kLow]) {
  if constexpr (kConfig.two_plane) {
    pack_planes<kConfig.element>(words[i], low[i], a, b);
  } else {
    words[i] = pack<kConfig.element>(a, b);
  }
}

}  // namespace tilewise::bwd_short_sm90
