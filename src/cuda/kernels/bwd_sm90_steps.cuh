/// bwd_sm90: what one warpgroup of consumers computes, its 64 keys against one block of queries
/// after the other: scores, their gradients, dK and dV of its keys, its part of dQ. Everything is
/// transposed: rows are keys, columns queries.
#pragma once

#include "cuda/kernels/bwd_sm90_shared.cuh"
#include "cuda/tile/signal.cuh"
#include "cuda/tile/softcap.cuh"
#include "cuda/tile/tma.cuh"
#include "cuda/tile/warpgroup.cuh"
#include "cuda/tile/wgmma.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

template <Config kConfig>
struct Steps {
  static constexpr int kM = kConfig.block_m, kD = kConfig.head_dim, kDv = kConfig.head_dim_v;
  static constexpr int kColumnsDq = kConfig.columns_dq();
  /// dQ of a step: each warpgroup takes 64 of the rows, or half of the columns.
  static constexpr bool kSplitRows = kM == 128;
  static constexpr int kPartDq = kSplitRows ? kColumnsDq : kColumnsDq / 2;
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr int kSlot = 64 * kPanelRowBytes;  ///< 64 rows of a panel
  static constexpr Element kElement = kConfig.element;
  static_assert(!kConfig.fold_lse || !kConfig.modified);
  using Scores = Wgmma<kElement, kM>;
  using Keys = Wgmma<kElement, kD>;
  using Values = Wgmma<kElement, kDv>;
  using Queries = Wgmma<kElement, kPartDq>;

  const Args& args;
  const Shared<kConfig> shared;
  const int warpgroup, thread, warp, lane;  ///< thread, warp: of the warpgroup
  /// Descriptors of the first stages. K, V: 64 rows as A. Q, dO: as B of scores (K-major) and of
  /// dK, dV (MN-major). dS: as A, K: as B of dQ (both MN-major).
  const u64 dK, dV, dQ, dO, dQt, dOt, dSt, dKt;
  Ring<kConfig.q_stages> rQ, rO;
  Ring<2> slots, buffers;
  u32 kv_parity = 0;
  Job job;
  int pair = 0, block = 0;  ///< head (of the whole batch) and block of queries whose P is ready
  float rS[kM / 2], rGradS[kM / 2];  ///< S^T, dP^T
  u32 rP[kM / 4], rdS[kM / 4];       ///< P^T, dS^T
  float rDq[kPartDq / 2], rDk[kD / 2], rDv[kDv / 2];
  u32 rV[kConfig.v_registers ? kDv / 4 : 1];
  float slope = 0.0F;     ///< ALiBi's, log2 domain
  float* sums = nullptr;  ///< where the last dQ goes, and whose turn it takes
  u32* turn = nullptr;
  u32* unsignalled = nullptr;  ///< counter of a tile whose additions may still be on their way
  u32* turn_taken = nullptr;   ///< deterministic: of the last addition

  __forceinline__ Steps(const Args& a, u32 shared_base, int group)
      : args(a),
        shared{shared_base},
        warpgroup(group),
        thread(static_cast<int>(threadIdx.x) & 127),
        warp(thread / 32),
        lane(thread % 32),
        dK(panel_descriptor(shared.k() + group * kSlot, 16)),
        dV(panel_descriptor(shared.v() + group * kSlot, 16)),
        dQ(panel_descriptor(shared.q(0), 16)),
        dO(panel_descriptor(shared.d_o(0), 16)),
        dQt(panel_descriptor(shared.q(0), kM * kPanelRowBytes)),
        dOt(panel_descriptor(shared.d_o(0), kM * kPanelRowBytes)),
        dSt(panel_descriptor(shared.ds(0) + (kSplitRows ? group * kBlockN * kPanelRowBytes : 0),
                             16)),
        dKt(panel_descriptor(shared.k() + (kSplitRows ? 0 : columns_at(group * kPartDq)),
                             kBlockN * kPanelRowBytes)) {}

  /// Byte at which column `column` of K begins.
  static __forceinline__ u32 columns_at(int column) {
    return column / 64 * (kBlockN * kPanelRowBytes) + column % 64 * 2;
  }
  __forceinline__ int key_row() const {
    return job.block * kBlockN + warpgroup * 64 + warp * 16 + lane / 4;
  }

  // ---- hand-over

  __forceinline__ void sync_warpgroup() const { named_barrier_sync(8 + warpgroup, 128); }
  __forceinline__ void sync_consumers() const { named_barrier_sync(1, 256); }
  __forceinline__ void wait_q() const { mbarrier_wait(shared.q_full(rQ.slot), rQ.parity); }
  __forceinline__ void wait_do() const { mbarrier_wait(shared.do_full(rO.slot), rO.parity); }
  __forceinline__ void release(u32 barrier) const {
    if (lane == 0) mbarrier_arrive(barrier);
  }
  /// Waits for the producer. NOTE: it may itself wait for a signal of another block that waits for
  /// this block's signal: so signal before waiting.
  __forceinline__ void await_producer(u32 barrier, u32 parity) {
    if (lane == 0 && !mbarrier_try_wait(barrier, parity)) signal_done();
    __syncwarp();
    mbarrier_wait(barrier, parity);
  }
  /// Tells whoever waits for the last job that its stores and additions are complete: late, when
  /// they are, so that nobody here waits for them.
  __forceinline__ void signal_done() {
    if (lane == 0 && unsignalled != nullptr) {
      bulk_wait();
      fence_async();
      if constexpr (kConfig.deterministic) pass_turn();
      signal_add(unsignalled, 1);
    }
    unsignalled = nullptr;
  }

  __forceinline__ void fetch_job() {
    await_producer(shared.job_full(slots.slot), slots.parity);
    const Bytes16 words = load_shared_16(shared.slot(slots.slot));
    job = {static_cast<JobKind>(words.x), static_cast<int>(words.y), static_cast<int>(words.z),
           static_cast<int>(words.w)};
    __syncwarp();  // all lanes have read the slot
    release(shared.job_empty(slots.slot));
    slots.advance();
  }

  // ---- products, issued

  /// (F1) S^T = K Q^T; with fold_lse S - LSE
  __forceinline__ void issue_scores() {
    const u64 q = dQ + rQ.slot * (kPlan.q_stage / 16);
    if constexpr (kConfig.fold_lse) load_columns(rS, shared.offset(rQ.slot));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kD / 16; ++i) {
      Scores::multiply_shared(rS, dK + panel_step<kBlockN>(i), q + panel_step<kM>(i),
                              kConfig.fold_lse || i != 0);
    }
    wgmma_commit();
  }
  /// A value of each query to its column of a fragment.
  __forceinline__ void load_columns(float (&r)[kM / 2], u32 values) const {
#pragma unroll
    for (int j = 0; j < kM / 8; ++j) {
      const Floats2 x = load_shared_8(values + j * 32 + lane % 4 * 8);
      r[4 * j] = r[4 * j + 2] = x.x;
      r[4 * j + 1] = r[4 * j + 3] = x.y;
    }
  }
  /// (B4) dP^T = V dO^T
  __forceinline__ void issue_dp() {
    const u64 d_o = dO + rO.slot * (kPlan.do_stage / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDv / 16; ++i) {
      if constexpr (kConfig.v_registers) {
        Scores::multiply_register_rows(rGradS, rV[4 * i], rV[4 * i + 1], rV[4 * i + 2],
                                       rV[4 * i + 3], d_o + panel_step<kM>(i), i != 0);
      } else {
        Scores::multiply_shared(rGradS, dV + panel_step<kBlockN>(i), d_o + panel_step<kM>(i),
                                i != 0);
      }
    }
    wgmma_commit();
  }
  /// The warp's 16 rows of V as A fragments.
  template <int kColumns, int kWords>
  __forceinline__ void load_operand(u32 (&to)[kWords], u32 from) const {
    const int row = warpgroup * 64 + warp * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i) {
      u32 r[4];
      const int chunk = (i % 4 * 2 + lane / 16) ^ (row % 8);
      load_matrix_x4(r,
                     from + i / 4 * (kBlockN * kPanelRowBytes) + row * kPanelRowBytes + chunk * 16);
#pragma unroll
      for (int e = 0; e < 4; ++e) to[4 * i + e] = r[e];
    }
  }
  /// Descriptor units from the first to the i-th 16 columns of panels of kRows rows.
  template <int kRows>
  static __forceinline__ constexpr u32 panel_step(int i) {
    return i / 4 * (kRows * kPanelRowBytes / 16) + i % 4 * kStepColumns;
  }
  /// (B3) dV += P^T dO
  __forceinline__ void issue_dv() {
    const u64 d_o = dOt + rO.slot * (kPlan.do_stage / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) {
      Values::multiply_register(rDv, rP[4 * i], rP[4 * i + 1], rP[4 * i + 2], rP[4 * i + 3],
                                d_o + i * kStepRows);
    }
    wgmma_commit();
  }
  /// (B9) dK += dS^T Q
  __forceinline__ void issue_dk(u32 stage) {
    const u64 q = dQt + stage * (kPlan.q_stage / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) {
      Keys::multiply_register(rDk, rdS[4 * i], rdS[4 * i + 1], rdS[4 * i + 2], rdS[4 * i + 3],
                              q + i * kStepRows);
    }
    wgmma_commit();
  }
  /// (B8) dQ = dS K of this step
  __forceinline__ void issue_dq() {
    const u64 ds = dSt + buffers.slot * (kPlan.ds_buffer / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kBlockN / 16; ++i) {
      Queries::multiply_transposed(rDq, ds + i * kStepRows, dKt + i * kStepRows, i != 0);
    }
    wgmma_commit();
  }

  // ---- scores and their gradients

  /// (F2, F3) raw scores to logits in the log2 domain; the slope of the softcap to shared memory.
  __forceinline__ void modify() {
    if constexpr (kConfig.softcap) {
      const u32 gate = shared.base + kPlan.gate + (warpgroup * 128 + thread) * 16;
#pragma unroll
      for (int i = 0; i < kM / 2; i += 8) {
        u32 g[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& a = rS[i + 2 * e];
          float& b = rS[i + 2 * e + 1];
          a = tanh_fast(args.scale_cap * a);
          b = tanh_fast(args.scale_cap * b);
          g[e] = pack<Element::fp16>(__fmaf_rn(-a, a, 1.0F), __fmaf_rn(-b, b, 1.0F));
          a *= args.cap_log2;
          b *= args.cap_log2;
        }
        store_shared_16(gate + i / 8 * 4096, __uint_as_float(g[0]), __uint_as_float(g[1]),
                        __uint_as_float(g[2]), __uint_as_float(g[3]));
      }
    } else if constexpr (kConfig.modified) {
#pragma unroll
      for (int i = 0; i < kM / 2; ++i) rS[i] *= args.scale_log2;
    }
    if constexpr (kConfig.alibi) {
      const float distance =
          static_cast<float>(block * kM + 2 * (lane % 4) + args.seq_k - args.seq_q - key_row());
#pragma unroll
      for (int i = 0; i < kM / 2; ++i) {
        const float here = distance + static_cast<float>(8 * (i / 4) + i % 2 - 8 * (i / 2 % 2));
        rS[i] = __fmaf_rn(-slope, fabsf(here), rS[i]);
      }
    }
  }

  /// Hidden scores become -inf: replaced, so that nothing of a hidden key leaks. CONTRACT 4, 5, 10
  __forceinline__ void mask() {
    const int column = block * kM + 2 * (lane % 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = key_row() + 8 * r;
      int begin = -Positions::kFar;
      if constexpr (kConfig.mask != Mask::none) begin = key - args.high + 1 - column;
      if (key >= args.seq_k) begin = Positions::kFar;
#pragma unroll
      for (int j = 0; j < kM / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          bool hidden;
          if constexpr (kConfig.mask == Mask::both) {
            // Visible columns are a range: one comparison finds what lies outside.
            const u32 visible = static_cast<u32>(args.high - args.low);
            hidden = static_cast<u32>(8 * j + e - begin) >= visible;
          } else {
            hidden = 8 * j + e < begin;
          }
          if (hidden) rS[4 * j + 2 * r + e] = -infinity();
        }
      }
    }
  }

  /// (B1) P = exp(min(S - LSE, 0)). The minimum is taken after the exponential, of two at a time.
  template <bool kMasked>
  __forceinline__ void probabilities() {
    modify();
    if constexpr (kMasked) mask();
    const u32 offset = shared.offset(rQ.slot) + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < kM / 8; ++j) {
      Floats2 l = {0.0F, 0.0F};
      if constexpr (!kConfig.fold_lse) l = load_shared_8(offset + j * 32);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& a = rS[4 * j + 2 * r];
        float& b = rS[4 * j + 2 * r + 1];
        if constexpr (kConfig.fold_lse) {
          a *= args.scale_log2;
          b *= args.scale_log2;
        } else if constexpr (kConfig.modified) {
          a += l.x;
          b += l.y;
        } else {
          a = __fmaf_rn(a, args.scale_log2, l.x);
          b = __fmaf_rn(b, args.scale_log2, l.y);
        }
        rP[2 * j + r] =
            min_nan_2<kElement>(pack<kElement>(exp2_approx(a), exp2_approx(b)), kOnes<kElement>);
      }
    }
  }

  /// (B5, B7) dS = P (dP - delta), with a softcap times its slope
  __forceinline__ void score_gradients() {
    const u32 delta = shared.delta(rO.slot) + lane % 4 * 8;
    Floats2 d;
    const u32 gate = shared.base + kPlan.gate + (warpgroup * 128 + thread) * 16;
#pragma unroll
    for (int i = 0; i < kM / 4; i += 4) {
      u32 gates[4] = {};
      if constexpr (kConfig.softcap) {
        const Bytes16 g = load_shared_16(gate + i / 4 * 4096);
        gates[0] = g.x, gates[1] = g.y, gates[2] = g.z, gates[3] = g.w;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (e % 2 == 0) d = load_shared_8(delta + (i + e) / 2 * 32);
        const u32 p = rP[i + e];
        float a = widen<kElement>(p & 0xffffU) * (rGradS[2 * (i + e)] - d.x);
        float b = widen_high<kElement>(p) * (rGradS[2 * (i + e) + 1] - d.y);
        if constexpr (kConfig.softcap) {
          a *= widen<Element::fp16>(gates[e] & 0xffffU);
          b *= widen_high<Element::fp16>(gates[e]);
        }
        rdS[i + e] = pack<kElement>(a, b);
      }
    }
  }

  /// dS^T to shared memory: panels of 64 queries x 128 keys.
  __forceinline__ void store_ds() {
    const int row = warpgroup * 64 + warp * 16 + lane % 16;
    const u32 to = shared.ds(buffers.slot) + row * kPanelRowBytes;
#pragma unroll
    for (int k = 0; k < kM / 16; ++k) {
      const u32 words[4] = {rdS[4 * k], rdS[4 * k + 1], rdS[4 * k + 2], rdS[4 * k + 3]};
      const int chunk = (k % 4 * 2 + lane / 16) ^ (row % 8);
      store_matrix_x4(to + k / 4 * (kBlockN * kPanelRowBytes) + chunk * 16, words);
    }
    fence_async_shared();
    __syncwarp();
    release(shared.ds_full(buffers.slot));
  }

  // ---- sums of dQ

  /// Where this warp's fragments of the sums of a block of queries lie.
  __forceinline__ float* sums_at(int of_pair, int of_block) const {
    const i64 row = static_cast<i64>(of_pair) * args.rows_q + of_block * kM;
    const int band = kSplitRows ? warpgroup * 4 + warp : warp;
    return args.dq_sum + (row + 16 * band) * kColumnsDq +
           (kSplitRows ? 0 : warpgroup * kPartDq * 16);
  }
  /// Adds dQ of the step to the sums: staged per warp, added by the copy engine.
  __forceinline__ void add_dq(float* to, u32* turn) {
    const u32 stage = shared.dq(warpgroup * 4 + warp);
    if (lane == 0) {
      if constexpr (kConfig.deterministic) {
        pass_turn();
      } else {
        bulk_wait_read();
      }
    }
    __syncwarp();  // the copy engine has read what was staged before
#pragma unroll
    for (int i = 0; i < kPartDq / 8; ++i) {
      store_shared_16(stage + (i * 32 + lane) * 16, rDq[4 * i], rDq[4 * i + 1], rDq[4 * i + 2],
                      rDq[4 * i + 3]);
    }
    fence_async_shared();
    __syncwarp();
    if (lane == 0) {
      // Late, before the first step of a tile, there is nothing to add yet.
      if (!kConfig.late_dq || to != nullptr) {
        if constexpr (kConfig.deterministic) await_turn(turn);
        bulk_add(to, stage, kPlan.dq_warp);
        bulk_commit();
      }
    }
  }

  // ---- deterministic: a warp's fragments of a block of queries are added to in the order of the
  // key blocks

  __forceinline__ u32* turn_at(int of_pair, int of_block) const {
    if constexpr (!kConfig.deterministic) return nullptr;
    return args.turns +
           (static_cast<i64>(of_pair) * (args.rows_q / kM) + of_block) * kConsumerWarps +
           warpgroup * 4 + warp;
  }
  /// Lane 0: the last addition is complete, the next key block may add.
  __forceinline__ void pass_turn() {
    bulk_wait();
    if (turn_taken == nullptr) return;
    fence_async();
    signal_add(turn_taken, 1);
    turn_taken = nullptr;
  }
  /// Lane 0: key blocks that come before this one have added.
  __forceinline__ void await_turn(u32* turn) {
    u32 before = 0;
    const int row = block_added * kM;
    const BlockRange keys =
        key_blocks<kBlockN>(diagonals<kConfig>(args), row, min(row + kM, args.seq_q), args.seq_k);
    before = args.last_first ? keys.end - 1 - job.block : job.block - keys.begin;
    signal_wait(turn, before);
    fence_async();
    turn_taken = turn;
  }
  int block_added = 0;  ///< the block of queries whose dQ is being added

  // ---- steps

  /// Entry: P of (pair, block) is ready, nothing is in flight. Exit: the same for the next block.
  /// No branch may lie between a product and its wait, or ptxas serialises them (C7514).
  template <bool kMasked, bool kLast>
  __forceinline__ void step(int next_pair, int next_block) {
    wait_do();
    issue_dp();
    issue_dv();
    if constexpr (kConfig.late_dq) add_dq(sums, turn);
    sums = sums_at(pair, block);
    turn = turn_at(pair, block);
    if constexpr (kConfig.deterministic) block_added = block;
    wgmma_wait<1>();
    pin(rGradS);
    score_gradients();
    store_ds();
    const u32 stage_q = rQ.slot;
    issue_dk(stage_q);
    rQ.advance();
    if constexpr (!kLast) {
      // P and dS are let go before the next S comes: registers.
      wgmma_wait<1>();
      pin(rDv);
      pin(rP);
      release(shared.do_empty(rO.slot));
      wait_q();
      issue_scores();
      wgmma_wait<1>();
      pin(rDk);
      pin(rdS);
      release(shared.q_empty(stage_q));
    }
    mbarrier_wait(shared.ds_full(buffers.slot), buffers.parity);
    issue_dq();
    buffers.advance();
    if constexpr (!kLast) {
      wgmma_wait<1>();
      pin(rS);
      pair = next_pair;
      block = next_block;
      probabilities<kMasked>();
    }
    wgmma_wait<0>();
    pin(rDq);
    pin(rDk);
    pin(rDv);
    if constexpr (kLast) {
      release(shared.q_empty(stage_q));
      release(shared.do_empty(rO.slot));
      release(shared.kv_empty());
    }
    rO.advance();
    if constexpr (!kConfig.late_dq || kLast) add_dq(sums, turn);
  }

  __forceinline__ void first_step(const BlockRange& range) {
    block = range.begin;
    sums = nullptr;
    await_producer(shared.k_full(), kv_parity);
    wait_q();
    issue_scores();
    wgmma_wait<0>();
    pin(rS);
    if (block < range.full_begin || block >= range.full_end) {
      probabilities<true>();
    } else {
      probabilities<false>();
    }
    mbarrier_wait(shared.v_full(), kv_parity);
    if constexpr (kConfig.v_registers) load_operand<kDv>(rV, shared.v());
    kv_parity ^= 1;
  }
};

}  // namespace tilewise::bwd_sm90
