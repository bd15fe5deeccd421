/// bwd_dq_sm90: the consumer, a warpgroup: dQ of 64 query rows of each tile.
#pragma once

#include "cuda/kernels/bwd_sm90/dq/shared.cuh"
#include "cuda/kernels/bwd_sm90/large_dim_sums.cuh"
#include "cuda/kernels/bwd_sm90/rows.cuh"
#include "cuda/tile/hopper/ptx/warpgroup.cuh"
#include "cuda/tile/softcap.cuh"

namespace tilewise::bwd_dq_sm90 {

using namespace tile;
using bwd_sm90::pack_planes;
using bwd_sm90::panel_step;

template <Config kConfig>
struct Consumer {
  static constexpr int kD = kConfig.head_dim, kDv = kConfig.head_dim_v;
  static constexpr Element kElement = kConfig.element;
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr int kTurnThreads = 256;  ///< a turn passes from one warpgroup to the other
  using Product = Wgmma<kElement, kBlockN>;

  const Args& args;
  const Shared<kConfig> shared;
  const int warpgroup, thread, warp, lane;  ///< thread, warp: of the warpgroup
  const u64 dQ, dO, dK, dV, dKt;            ///< Q, dO as A, K, V as B; K as B of dQ
  Ring<kConfig.k_stages> rK;
  Ring<kConfig.v_stages> rV;
  Ring<1> rQ, rO;
  Ring<2> slots;
  Tile tile;
  u32 held = 0;  ///< stage of the K that dQ of the last block needs
  float offset[2], delta[2];
  float slope = 0.0F;              ///< ALiBi's, log2 domain
  float rS[kBlockN / 2];           ///< S, then P, then dS
  float rdP[kBlockN / 2];          ///< dP
  bwd_sm90::LargeDimSums<kD> rDq;  ///< dQ / scale
  u32 rdS[kBlockN / 4];
  u32 rdSlow[kConfig.two_plane ? kBlockN / 4 : 1];  ///< what rounding took from it

  __forceinline__ Consumer(const Args& a, u32 shared_base, int group)
      : args(a),
        shared{shared_base},
        warpgroup(group),
        thread(static_cast<int>(threadIdx.x) & 127),
        warp(thread / 32),
        lane(thread % 32),
        dQ(panel_descriptor(shared.q(group), 16)),
        dO(panel_descriptor(shared.d_o(group), 16)),
        dK(panel_descriptor(shared.k(0), 16)),
        dV(panel_descriptor(shared.v(0), 16)),
        dKt(panel_descriptor(shared.k(0), SharedPlan::kPanel)) {}

  /// First query of the warpgroup's rows; the thread's are those of lane / 4 and 8 further on.
  __forceinline__ int group_query() const { return tile.block * kBlockM + warpgroup * 64; }
  __forceinline__ int query(int r) const { return group_query() + warp * 16 + lane / 4 + 8 * r; }

  // ---- hand-over with the producer and between the warpgroups

  __forceinline__ void wait_k() const { mbarrier_wait(shared.k_full(rK.slot), rK.parity); }
  __forceinline__ void wait_v() const { mbarrier_wait(shared.v_full(rV.slot), rV.parity); }
  __forceinline__ void release(u32 barrier) const {
    if (lane == 0) mbarrier_arrive(barrier);
  }
  __forceinline__ void release_v() {
    release(shared.v_empty(rV.slot));
    rV.advance();
  }
  __forceinline__ void sync_warpgroup() const { named_barrier_sync(8 + warpgroup, 128); }
  /// One turn for every block of the tile, skipped ones included, and one at its end.
  __forceinline__ void await_turn() const {
    if constexpr (kConfig.ping_pong) named_barrier_sync(1 + warpgroup, kTurnThreads);
  }
  __forceinline__ void pass_turn() const {
    if constexpr (kConfig.ping_pong) named_barrier_arrive(2 - warpgroup, kTurnThreads);
  }

  __forceinline__ void fetch_tile() {
    mbarrier_wait(shared.tile_full(slots.slot), slots.parity);
    const Bytes16 words = load_shared_16(shared.slot(slots.slot));
    tile.block = static_cast<int>(words.x);
    tile.batch = static_cast<int>(words.y);
    tile.head = static_cast<int>(words.z);
    if constexpr (kConfig.ragged()) {
      const Bytes16 lengths = load_shared_16(shared.slot(slots.slot) + 16);
      tile.seq_q = static_cast<int>(lengths.x);
      tile.seq_k = static_cast<int>(lengths.y);
      tile.q_begin = static_cast<int>(lengths.z);
    }
    __syncwarp();  // all lanes have read the slot
    release(shared.tile_empty(slots.slot));
    slots.advance();
  }
  /// A block of the tile that these rows do not see.
  __forceinline__ void skip() {
    wait_k();
    await_turn();
    pass_turn();
    release(shared.k_empty(rK.slot));
    rK.advance();
    wait_v();
    release_v();
  }

  /// -LSE and delta of the thread's rows; past the end P is 0.
  __forceinline__ void load_rows() {
    i64 row = static_cast<i64>(entry_of<kConfig>(tile) * args.heads_q + tile.head) * args.rows_q;
    if constexpr (kPacked<kConfig>) row += (tile.q_begin / kBlockM + tile.batch) * kBlockM;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      offset[r] = -infinity();
      delta[r] = 0.0F;
      if (query(r) < queries_of<kConfig>(args, tile)) {
        offset[r] = args.offset[row + query(r)];
        delta[r] = args.delta[row + query(r)];
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) offset[r] *= args.offset_factor;
    if constexpr (kConfig.logits.alibi) {
      // Queries behind the last sequence have no slope.
      const bool behind = kConfig.lengths == Lengths::packed && tile.seq_k == 0;
      slope =
          behind ? 0.0F : kLog2e * args.alibi[tile.batch * args.alibi_b + tile.head * args.alibi_h];
    }
  }

  // ---- products

  /// (F1) S = Q K^T
  __forceinline__ void issue_scores() {
    const u64 k = dK + rK.slot * (kPlan.columns / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kD / 16; ++i) {
      Product::multiply_shared(rS, dQ + panel_step<64>(i), k + panel_step<64>(i), i != 0);
    }
    wgmma_commit();
  }
  /// (B4) dP = dO V^T
  __forceinline__ void issue_dp() {
    const u64 v = dV + rV.slot * (kPlan.columns_v / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDv / 16; ++i) {
      Product::multiply_shared(rdP, dO + panel_step<64>(i), v + panel_step<64>(i), i != 0);
    }
    wgmma_commit();
  }
  /// (B8) dQ += dS K
  __forceinline__ void issue_dq() {
    const u64 k = dKt + held * (kPlan.columns / 16);
    wgmma_fence();
    rDq.template add_product<kElement>(rdS, k);
    if constexpr (kConfig.two_plane) rDq.template add_product<kElement>(rdSlow, k);
    wgmma_commit();
  }
  /// dQ has been summed: its K is free.
  __forceinline__ void finish_dq() {
    rDq.pin_all();
    pin(rdS);
    if constexpr (kConfig.two_plane) pin(rdSlow);
    release(shared.k_empty(held));
  }

  // ---- scores to dS

  /// (F2, F3) raw scores to logits in the log2 domain, where they are not just scaled; the slope of
  /// the softcap goes to `gate`.
  __forceinline__ float modify(float s, int i, float& gate) const {
    if constexpr (kConfig.logits.softcap) {
      const float t = tanh_fast(args.scale_cap * s);
      gate = __fmaf_rn(-t, t, 1.0F);
      s = t * args.cap_log2;
    } else if constexpr (kConfig.logits.modified) {
      s *= args.scale_log2;
    }
    return s;
  }
  __forceinline__ void add_bias(int block) {
    if constexpr (kConfig.logits.alibi) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float distance =
            static_cast<float>(query(r) + keys_of<kConfig>(args, tile) -
                               queries_of<kConfig>(args, tile) - block * kBlockN - 2 * (lane % 4));
#pragma unroll
        for (int j = 0; j < kBlockN / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& s = rS[4 * j + 2 * r + e];
            s = __fmaf_rn(-slope, fabsf(distance - static_cast<float>(8 * j + e)), s);
          }
        }
      }
    }
  }
  /// Hidden scores become -inf: replaced, so that nothing of a hidden key leaks. CONTRACT 4, 5, 10
  __forceinline__ void mask(int block) {
    const int column = block * kBlockN + 2 * (lane % 4);
    const Diagonals d = diagonals<kConfig>(args, tile);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int end = keys_of<kConfig>(args, tile) - column;
      if constexpr (kConfig.mask != Mask::none) end = min(end, query(r) + d.high - column);
      const int begin = kConfig.mask == Mask::both ? query(r) + d.low - column : 0;
#pragma unroll
      for (int j = 0; j < kBlockN / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          bool hidden = 8 * j + e >= end;
          if constexpr (kConfig.mask == Mask::both) hidden |= 8 * j + e < begin;
          if (hidden) rS[4 * j + 2 * r + e] = -infinity();
        }
      }
    }
  }
  /// (B1) P = exp(min(S - LSE, 0)), with a softcap times its slope
  template <bool kMasked>
  __forceinline__ void probabilities(int block) {
    float gate[kConfig.logits.softcap ? kBlockN / 2 : 1];
    if constexpr (kConfig.logits.modified) {
#pragma unroll
      for (int i = 0; i < kBlockN / 2; ++i)
        rS[i] = modify(rS[i], i, gate[kConfig.logits.softcap ? i : 0]);
      add_bias(block);
    }
    if constexpr (kMasked) mask(block);
#pragma unroll
    for (int i = 0; i < kBlockN / 2; ++i) {
      const float l = offset[i / 2 % 2];
      const float x = kConfig.logits.modified ? rS[i] + l : __fmaf_rn(rS[i], args.scale_log2, l);
      rS[i] = min_nan(exp2_approx(x), 1.0F);
      if constexpr (kConfig.logits.softcap) rS[i] *= gate[i];
    }
  }
  /// (B5) dS = P (dP - delta), rounded
  __forceinline__ void score_gradients() {
#pragma unroll
    for (int i = 0; i < kBlockN / 4; ++i) {
      const float l = delta[i % 2];
      const float a = rS[2 * i] * (rdP[2 * i] - l), b = rS[2 * i + 1] * (rdP[2 * i + 1] - l);
      if constexpr (kConfig.two_plane) {
        pack_planes<kElement>(rdS[i], rdSlow[i], a, b);
      } else {
        rdS[i] = pack<kElement>(a, b);
      }
    }
  }
  /// S and dP of `block` are in flight: dS of it.
  template <bool kMasked>
  __forceinline__ void finish_scores(int block) {
    wgmma_wait<1>();  // S; dP is still being worked out
    pin(rS);
    probabilities<kMasked>(block);
    // Long over: but ptxas does not move the wait for dP, which P may stand under, ahead of it.
    wait_k();
    wgmma_wait<0>();
    pin(rdP);
    release_v();
    score_gradients();
    held = rK.slot;
    rK.advance();
  }

  // ---- a tile

  template <bool kMasked>
  __forceinline__ void first_step(int block) {
    wait_k();
    await_turn();
    issue_scores();
    mbarrier_wait(shared.do_full(warpgroup), rO.parity);
    wait_v();
    issue_dp();
    pass_turn();
    finish_scores<kMasked>(block);
  }
  /// Entry: dS of the block before is ready, nothing is in flight. Exit: the same of `block`.
  template <bool kMasked>
  __forceinline__ void step(int block) {
    await_turn();
    issue_dq();
    if constexpr (kConfig.two_plane) {
      wgmma_wait<0>();  // two planes take too many registers beside S and dP
      finish_dq();
    }
    wait_k();
    issue_scores();
    wait_v();
    issue_dp();
    pass_turn();
    if constexpr (!kConfig.two_plane) {
      wgmma_wait<2>();  // dQ; its K is wanted for the block after the next
      finish_dq();
    }
    finish_scores<kMasked>(block);
  }
  __forceinline__ void run_blocks(const BlockRange& own) {
    int block = own.end - 1;
    if (block >= own.full_end || (kConfig.mask == Mask::both && block < own.full_begin)) {
      first_step<true>(block);
    } else {
      first_step<false>(block);
    }
    --block;
    if constexpr (kConfig.mask != Mask::none) {
#pragma unroll 1
      for (; block >= own.begin && block >= own.full_end; --block) step<true>(block);
    }
    const int full_begin = kConfig.mask == Mask::both ? own.full_begin : own.begin;
#pragma unroll 1
    for (; block >= full_begin; --block) step<false>(block);
    if constexpr (kConfig.mask == Mask::both) {
#pragma unroll 1
      for (; block >= own.begin; --block) step<true>(block);
    }
    release(shared.read_empty(warpgroup));
    await_turn();
    issue_dq();
    pass_turn();
    wgmma_wait<0>();
    finish_dq();
  }

  /// dQ to memory by way of the place of dO or Q.
  __forceinline__ void leave_rows() {
    const u32 place = shared.staged(warpgroup);
    sync_warpgroup();  // all four warps are done with what lies there
    bwd_sm90::stage_rows<kElement>(rDq, args.scale, place, warp, lane);
    fence_async_shared();
    sync_warpgroup();
    if (thread == 0) {
      if (group_query() < queries_of<kConfig>(args, tile)) {
        for (int p = 0; p < SharedPlan::panels(kD); ++p) {
          if constexpr (kPacked<kConfig>) {
            int at[4];
            query_coordinates<kConfig>(at, args, tile, group_query());
            tma_store_5d(&args.dq, place + p * SharedPlan::kPanel, p * kPanelColumns, at);
          } else {
            tma_store(&args.dq, place + p * SharedPlan::kPanel, p * kPanelColumns, tile.head,
                      group_query(), tile.batch);
          }
        }
        bulk_commit();
        bulk_wait_read();
      }
    }
    release(shared.staged_empty(warpgroup));
    rQ.advance();
    rO.advance();
  }

  __forceinline__ void run_tile() {
    const BlockRange all = key_range<kConfig>(args, tile, tile.block * kBlockM, kBlockM);
    const BlockRange own = key_range<kConfig>(args, tile, group_query(), 64);
    load_rows();
    rDq.clear();
    mbarrier_wait(shared.q_full(warpgroup), rQ.parity);
    const bool any = own.begin < own.end;
    int block = all.end - 1;
#pragma unroll 1
    for (; block >= all.begin && (!any || block >= own.end); --block) skip();
    if (any) {
      run_blocks(own);
#pragma unroll 1
      for (block = own.begin - 1; block >= all.begin; --block) skip();
    } else if (all.begin < all.end) {
      await_turn();
      pass_turn();
    }
    if (!any) {
      mbarrier_wait(shared.do_full(warpgroup), rO.parity);
      release(shared.read_empty(warpgroup));
    }
    leave_rows();
  }

  __forceinline__ void run() {
    if (kConfig.ping_pong && warpgroup == 1) pass_turn();  // the first turn is warpgroup 0's
    fetch_tile();
    while (tile.block >= 0) {
      run_tile();
      fetch_tile();
    }
  }
};

}  // namespace tilewise::bwd_dq_sm90
