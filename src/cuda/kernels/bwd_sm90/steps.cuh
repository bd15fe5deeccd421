/// bwd_sm90: what one warpgroup of consumers computes, its 64 keys against one block of queries
/// after the other: scores, their gradients, dK and dV of its keys. Everything is transposed: rows
/// are keys, columns queries.
#pragma once

#include "cuda/kernels/bwd_sm90/scores.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

template <Config kConfig>
struct Steps : Scores<kConfig> {
  using Base = Scores<kConfig>;
  using Base::args;
  using Base::await_producer;
  using Base::block;
  using Base::dQ;
  using Base::issue_scores;
  using Base::job;
  using Base::kBlockN;
  using Base::kD;
  using Base::kDv;
  using Base::kElement;
  using Base::kM;
  using Base::kPlan;
  using Base::kSlot;
  using Base::lane;
  using Base::pair;
  using Base::release;
  using Base::rK;
  using Base::rO;
  using Base::rP;
  using Base::rQ;
  using Base::rS;
  using Base::shared;
  using Base::sync_consumers;
  using Base::thread;
  using Base::wait_do;
  using Base::wait_q;
  using Base::warp;
  using Base::warpgroup;
  using Product = Wgmma<kElement, kM>;
  using Keys = Wgmma<kElement, kD>;
  using Values = Wgmma<kElement, kDv>;

  /// Descriptors of the first stages. V: 64 rows as A. dO: as B of dP (K-major); Q, dO: of dK, dV
  /// (MN-major).
  const u64 dV, dO, dQt, dOt;
  Ring<2> buffers;
  float rGradS[kM / 2];  ///< dP^T
  u32 rdS[kM / 4];       ///< dS^T
  u32 rdSlow[kConfig.exact ? kM / 4 : 1];
  float rDk[kD / 2], rDv[kDv / 2];
  u32 rV[kConfig.v_registers ? kDv / 4 : 1];

  __forceinline__ Steps(const Args& a, u32 shared_base, int group)
      : Base(a, shared_base, group),
        dV(panel_descriptor(shared.v() + group * kSlot, 16)),
        dO(panel_descriptor(shared.d_o(0), 16)),
        dQt(panel_descriptor(shared.q(0), kM * kPanelRowBytes)),
        dOt(panel_descriptor(shared.d_o(0), kM * kPanelRowBytes)) {}

  /// The next tile's K lies in the other stage.
  __forceinline__ void next_k() {
    if constexpr (kConfig.k_stages == 2) {
      const u64 to_other =
          rK.slot == 0 ? kPlan.k_stage / 16 : -static_cast<u64>(kPlan.k_stage / 16);
      this->dK += to_other;
    }
    rK.advance();
  }

  // ---- products, issued

  /// (B4) dP^T = V dO^T
  __forceinline__ void issue_dp() {
    const u64 d_o = dO + rO.slot * (kPlan.do_stage / 16);
    const u64 v = this->step_descriptor(dV);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDv / 16; ++i) {
      if constexpr (kConfig.v_registers) {
        Product::multiply_register_rows(rGradS, rV[4 * i], rV[4 * i + 1], rV[4 * i + 2],
                                        rV[4 * i + 3], d_o + panel_step<kM>(i), i != 0);
      } else {
        Product::multiply_shared(rGradS, v + panel_step<kBlockN>(i), d_o + panel_step<kM>(i),
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
  /// (B3) dV += P^T dO
  template <int kWords>
  __forceinline__ void issue_dv(const u32 (&words)[kWords]) {
    const u64 d_o = dOt + rO.slot * (kPlan.do_stage / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) {
      Values::multiply_register(rDv, words[4 * i], words[4 * i + 1], words[4 * i + 2],
                                words[4 * i + 3], d_o + i * kStepRows);
    }
    wgmma_commit();
  }
  /// (B9) dK += dS^T Q
  template <int kWords>
  __forceinline__ void issue_dk(u32 stage, const u32 (&words)[kWords]) {
    const u64 q = dQt + stage * (kPlan.q_stage / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) {
      Keys::multiply_register(rDk, words[4 * i], words[4 * i + 1], words[4 * i + 2],
                              words[4 * i + 3], q + i * kStepRows);
    }
    wgmma_commit();
  }

  // ---- scores and their gradients

  /// (B5, B7) dS = P (dP - delta), with a softcap times its slope
  __forceinline__ void score_gradients() {
    const u32 delta = shared.delta(rO.slot) + lane % 4 * 8;
    Floats2 d;
    const u32 gate = this->gate_place();
    if constexpr (kConfig.options.dropout) {
      this->for_dropped([&](int i) { rGradS[i] = 0.0F; });
    }
#pragma unroll
    for (int i = 0; i < kM / 4; i += 4) {
      u32 gates[4] = {};
      Bytes16 slopes[2];
      if constexpr (kConfig.gated) this->load_slopes(slopes, i / 4);
      if constexpr (kConfig.softcap) {
        const Bytes16 g = load_shared_16(gate + i / 4 * 4096);
        gates[0] = g.x, gates[1] = g.y, gates[2] = g.z, gates[3] = g.w;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (e % 2 == 0) d = load_shared_8(delta + (i + e) / 2 * 32);
        const u32 p = rP[i + e];
        float a = rGradS[2 * (i + e)], b = rGradS[2 * (i + e) + 1];
        if constexpr (kConfig.options.dropout) {
          // (B4) Z dP / (1 - p)
          const float scale = this->options->dropout.scale;
          a = __fmaf_rn(a, scale, -d.x);
          b = __fmaf_rn(b, scale, -d.y);
        } else {
          a -= d.x;
          b -= d.y;
        }
        if constexpr (kConfig.exact) {
          a *= rS[2 * (i + e)];
          b *= rS[2 * (i + e) + 1];
        } else {
          a *= widen<kElement>(p & 0xffffU);
          b *= widen_high<kElement>(p);
        }
        if constexpr (kConfig.softcap) {
          a *= widen<Element::fp16>(gates[e] & 0xffffU);
          b *= widen_high<Element::fp16>(gates[e]);
        }
        if constexpr (kConfig.gated) {
          // Of a hidden pair nothing comes through, an infinite slope neither.
          const bool hidden_a = kConfig.exact ? rS[2 * (i + e)] == 0.0F : (p & 0xffffU) == 0;
          const bool hidden_b = kConfig.exact ? rS[2 * (i + e) + 1] == 0.0F : p >> 16 == 0;
          const Floats2 slope = this->slopes_of(slopes, 2 * e);
          a = hidden_a ? 0.0F : a * slope.x;
          b = hidden_b ? 0.0F : b * slope.y;
        }
        if constexpr (kConfig.exact) {
          pack_planes<kElement>(rdS[i + e], rdSlow[i + e], a, b);
        } else {
          rdS[i + e] = pack<kElement>(a, b);
        }
      }
    }
  }

  /// dS^T to shared memory: panels of 64 queries x 128 keys.
  template <int kWords>
  __forceinline__ void store_ds(const u32 (&of)[kWords]) {
    const int row = warpgroup * 64 + warp * 16 + lane % 16;
    const u32 to = shared.ds(buffers.slot) + row * kPanelRowBytes;
#pragma unroll
    for (int k = 0; k < kM / 16; ++k) {
      const u32 words[4] = {of[4 * k], of[4 * k + 1], of[4 * k + 2], of[4 * k + 3]};
      const int chunk = (k % 4 * 2 + lane / 16) ^ (row % 8);
      store_matrix_x4(to + k / 4 * (kBlockN * kPanelRowBytes) + chunk * 16, words);
    }
    if constexpr (kConfig.listed()) {
      if (warpgroup == 0 && thread == 0) {
        store_shared_4(shared.ds_of(buffers.slot), static_cast<u32>(pair));
        store_shared_4(shared.ds_of(buffers.slot) + 4, static_cast<u32>(block));
      }
    }
    fence_async_shared();
    __syncwarp();
    release(shared.ds_full(buffers.slot));
  }

  // ---- rows that see no key

  /// Whether the block may have some. Uniform.
  __forceinline__ bool may_hide_rows() const {
    if constexpr (kConfig.picks_rows()) return true;
    const Diagonals d = diagonals<kConfig>(args, job);
    const int first = block * kM, last = first + kM - 1;
    return first + d.high <= 0 ||
           (kConfig.mask == Mask::both && last + d.low >= keys_of<kConfig>(args, job));
  }
  /// They add nothing, whatever they hold: their P is 0, but 0 times NaN is NaN.
  /// So Q, dO and delta become 0 where they lie, before dV (B3), dP (B4), dK (B9). CONTRACT 3
  /// Both warpgroups come here with the same block, whose S they are done with.
  __forceinline__ void hide_rows() {
    if constexpr (!kConfig.hides_rows() && !kConfig.picks_rows()) return;
    if (!may_hide_rows()) return;
    const u32 offsets = shared.offset(rQ.slot);
    const auto sees_nothing = [&](int row) {
      return load_shared_f32(offsets + 4 * static_cast<u32>(row)) == -infinity();
    };
    bool any = false;
#pragma unroll
    for (int row = 0; row < kM; row += 32) any |= sees_nothing(row + lane);
    if (!__any_sync(~0U, any)) return;
    sync_consumers();  // nobody reads Q any more
    constexpr int kPanelsQ = SharedPlan::panels(kD), kPanels = kPanelsQ + SharedPlan::panels(kDv);
    const int t = opaque(warpgroup * 128 + thread);
#pragma unroll 1
    for (int i = t; i < kPanels * kM * 8; i += 256) {
      const int panel = i / (kM * 8), at = i % (kM * 8);
      if (!sees_nothing(at / 8)) continue;
      const u32 to = panel < kPanelsQ
                         ? shared.q(rQ.slot) + panel * (kM * kPanelRowBytes)
                         : shared.d_o(rO.slot) + (panel - kPanelsQ) * (kM * kPanelRowBytes);
      store_shared_16(to + at * 16, 0.0F, 0.0F, 0.0F, 0.0F);
    }
    if (t < kM && sees_nothing(t)) store_shared_4(shared.delta(rO.slot) + 4 * t, 0);
    if constexpr (kConfig.softcap) hide_slopes(offsets);
    fence_async_shared();
    sync_consumers();  // the zeros are there, for all
  }
  /// The softcap's slopes, as modify() left them for this thread: those of a NaN in Q are NaN.
  __forceinline__ void hide_slopes(u32 offsets) {
#pragma unroll 1
    for (int j = 0; j < kM / 8; ++j) {
      const Floats2 l = load_shared_8(offsets + j * 32 + lane % 4 * 8);
      const u32 kept = (l.x == -infinity() ? 0U : 0xffffU) | (l.y == -infinity() ? 0U : ~0xffffU);
#pragma unroll
      for (int r = 0; r < 2; ++r) {  // two rows of a column
        const u32 at = this->gate_place() + j / 2 * 4096 + (j % 2 * 2 + r) * 4;
        store_shared_4(at, load_shared_4(at) & kept);
      }
    }
  }

  // ---- steps

  /// Entry: P of (pair, block) is ready, nothing is in flight. Exit: the same for the next block.
  /// No branch may lie between a product and its wait, or ptxas serialises them (C7514).
  template <bool kMasked, bool kLast>
  __forceinline__ void step(int next_pair, int next_block) {
    if constexpr (kConfig.exact) {
      exact_step<kMasked, kLast>(next_pair, next_block);
    } else if constexpr (kConfig.options.dropout) {
      dropout_step<kMasked, kLast>(next_pair, next_block);
    } else {
      keys_step<kMasked, kLast>(next_pair, next_block);
    }
  }
  /// One thing after the other: dS in two planes, each a step of dQ.
  template <bool kMasked, bool kLast>
  __forceinline__ void exact_step(int next_pair, int next_block) {
    wait_do();
    hide_rows();
    this->take_dropout();
    this->drop(rP);
    this->drop(this->rPlow);
    issue_dv(rP);
    issue_dv(this->rPlow);
    wgmma_wait<0>();
    pin(rDv);
    issue_dp();
    wgmma_wait<0>();
    pin(rGradS);
    score_gradients();
    issue_dk(rQ.slot, rdS);
    issue_dk(rQ.slot, rdSlow);
    await_buffer();
    store_ds(rdS);
    buffers.advance();
    await_buffer();
    store_ds(rdSlow);
    buffers.advance();
    wgmma_wait<0>();
    pin(rDk);
    release(shared.q_empty(rQ.slot));
    release(shared.do_empty(rO.slot));
    rQ.advance();
    rO.advance();
    if constexpr (kLast) {
      if constexpr (!kConfig.v_registers) release(shared.v_empty());
      release(shared.k_empty(rK.slot));
      next_k();
    } else {
      take_next_mask<false>(next_pair, next_block);
      wait_q();
      const u32 listed = this->template take_listed<kMasked>();
      take_next_mask<true>(next_pair, next_block);
      issue_scores();
      wgmma_wait<0>();
      pin(rS);
      take_next(next_pair, next_block);
      this->template probabilities<kMasked>(listed);
    }
  }
  /// Nothing waits for the other warpgroup, whose products run under what is worked
  /// out here. At most P, dP and the sums are held at a time, or S, P and the sums: 208 registers.
  template <bool kMasked, bool kLast>
  __forceinline__ void keys_step(int next_pair, int next_block) {
    wait_do();
    hide_rows();
    issue_dp();
    issue_dv(rP);
    wgmma_wait<0>();
    pin(rGradS);
    pin(rDv);
    if constexpr (kLast && !kConfig.v_registers && !kConfig.split) release(shared.v_empty());
    score_gradients();
    await_buffer();
    store_ds(rdS);
    buffers.advance();
    release(shared.do_empty(rO.slot));
    rO.advance();
    const u32 stage_q = rQ.slot;
    rQ.advance();
    issue_dk(stage_q, rdS);
    finish_step<kMasked, kLast>(stage_q, next_pair, next_block);
  }
  /// The same with dropout: dS is made of P, dV of what is kept of it, so that dV comes after dS. P
  /// has left before S of the next block takes its registers.
  template <bool kMasked, bool kLast>
  __forceinline__ void dropout_step(int next_pair, int next_block) {
    this->take_dropout();
    wait_do();
    hide_rows();
    issue_dp();
    wgmma_wait<0>();
    pin(rGradS);
    if constexpr (kLast && !kConfig.v_registers && !kConfig.split) release(shared.v_empty());
    score_gradients();
    this->drop(rP);
    issue_dv(rP);
    await_buffer();
    store_ds(rdS);
    buffers.advance();
    const u32 stage_q = rQ.slot;
    rQ.advance();
    issue_dk(stage_q, rdS);
    wgmma_wait<1>();
    pin(rDv);
    pin(rP);
    release(shared.do_empty(rO.slot));
    rO.advance();
    finish_step<kMasked, kLast>(stage_q, next_pair, next_block);
  }
  /// The end of a step, dK issued: S and P of the next block, and what is released.
  template <bool kMasked, bool kLast>
  __forceinline__ void finish_step(u32 stage_q, int next_pair, int next_block) {
    u32 listed = ~0U;
    if constexpr (!kLast) {
      take_next_mask<false>(next_pair, next_block);
      wait_q();
      listed = this->template take_listed<kMasked>();
      take_next_mask<true>(next_pair, next_block);
      issue_scores();
    }
    wgmma_wait<0>();
    pin(rDk);
    pin(rdS);
    release(shared.q_empty(stage_q));
    if constexpr (kLast) {
      // Of a part, V and K are let go of later: their rows stage its sums.
      if constexpr (!kConfig.split || kConfig.k_stages == 1) release(shared.k_empty(rK.slot));
      next_k();
    } else {
      pin(rS);
      take_next(next_pair, next_block);
      this->template probabilities<kMasked>(listed);
    }
  }
  /// A list has told by the stage of Q what is next.
  __forceinline__ void take_next(int next_pair, int next_block) {
    if constexpr (kConfig.listed()) return;
    pair = next_pair;
    block = next_block;
  }
  /// Before the wait for Q, which keeps the loads from moving down to where they are used first; of
  /// a list behind it.
  template <bool kBehind>
  __forceinline__ void take_next_mask(int next_pair, int next_block) {
    if constexpr (kBehind == kConfig.listed())
      this->take_mask(kBehind ? pair : next_pair, kBehind ? block : next_block);
  }
  /// dQ of what was stored in the next buffer of dS before has been worked out.
  __forceinline__ void await_buffer() const {
    mbarrier_wait(shared.ds_empty(buffers.slot), buffers.parity ^ 1);
  }
  /// The same of all that were stored.
  __forceinline__ void await_buffers() const {
    await_buffer();
    Ring<2> other = buffers;
    other.advance();
    mbarrier_wait(shared.ds_empty(other.slot), other.parity ^ 1);
  }

  __forceinline__ void first_step(const BlockRange& range) {
    block = range.begin;
    await_producer(shared.k_full(rK.slot), rK.parity);
    wait_q();
    const u32 listed = this->template take_listed<true>();
    this->take_mask(pair, block);
    issue_scores();
    wgmma_wait<0>();
    pin(rS);
    const int first = kConfig.listed() ? range.begin : block;
    if (first < range.full_begin || first >= range.full_end) {
      this->template probabilities<true>(listed);
    } else {
      this->template probabilities<false>();
    }
    mbarrier_wait(shared.v_full(), this->v_parity());
    if constexpr (kConfig.v_registers) {
      load_operand<kDv>(rV, shared.v());
      __syncwarp();  // all lanes have read
      release(shared.v_empty());
    }
  }
};

}  // namespace tilewise::bwd_sm90
