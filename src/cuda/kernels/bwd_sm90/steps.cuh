/// bwd_sm90: the steps of a consumer: products, scores and their gradients, one block of queries.
#pragma once

#include "cuda/kernels/bwd_sm90/bits.cuh"
#include "cuda/kernels/bwd_sm90/consumer.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// The next tile's K lies in the other stage.
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::next_k() {
  if constexpr (kConfig.shape.k_stages == 2) {
    const u64 to_other =
        scores.worker.rK.slot == 0 ? kPlan.k_stage / 16 : -static_cast<u64>(kPlan.k_stage / 16);
    scores.dK += to_other;
  }
  scores.worker.rK.advance();
}

// ---- products, issued

/// (B4) dP^T = V dO^T
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::issue_dp() {
  const u64 d_o = dO + scores.worker.rO.slot * (kPlan.do_stage / 16);
  const u64 v = scores.step_descriptor(dV);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kDv / 16; ++i) {
    if constexpr (kConfig.v_registers()) {
      Product::multiply_register_rows(rGradS, rV[4 * i], rV[4 * i + 1], rV[4 * i + 2],
                                      rV[4 * i + 3], d_o + panel_step<kM>(i), i != 0);
    } else {
      Product::multiply_shared(rGradS, v + panel_step<kBlockN>(i), d_o + panel_step<kM>(i), i != 0);
    }
  }
  wgmma_commit();
}
/// The warp's 16 rows of V as A fragments.
template <Config kConfig>
template <int kColumns, int kWords>
__forceinline__ void Consumer<kConfig>::load_operand(u32 (&to)[kWords], u32 from) const {
  const Worker<kConfig>& worker = scores.worker;
  const int row = worker.warpgroup * 64 + worker.warp * 16 + worker.lane % 16;
#pragma unroll
  for (int i = 0; i < kColumns / 16; ++i) {
    u32 r[4];
    const int chunk = (i % 4 * 2 + worker.lane / 16) ^ (row % 8);
    load_matrix_x4(r,
                   from + i / 4 * (kBlockN * kPanelRowBytes) + row * kPanelRowBytes + chunk * 16);
#pragma unroll
    for (int e = 0; e < 4; ++e) to[4 * i + e] = r[e];
  }
}
/// (B3) dV += P^T dO
template <Config kConfig>
template <int kWords>
__forceinline__ void Consumer<kConfig>::issue_dv(const u32 (&words)[kWords]) {
  const u64 d_o = dOt + scores.worker.rO.slot * (kPlan.do_stage / 16);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kM / 16; ++i) {
    Values::multiply_register(rDv, words[4 * i], words[4 * i + 1], words[4 * i + 2],
                              words[4 * i + 3], d_o + i * kStepRows);
  }
  wgmma_commit();
}
/// (B9) dK += dS^T Q
template <Config kConfig>
template <int kWords>
__forceinline__ void Consumer<kConfig>::issue_dk(u32 stage, const u32 (&words)[kWords]) {
  const u64 q = dQt + stage * (kPlan.q_stage / 16);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kM / 16; ++i) {
    Keys::multiply_register(rDk, words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3],
                            q + i * kStepRows);
  }
  wgmma_commit();
}

// ---- scores and their gradients

/// (B5, B7) dS = P (dP - delta), with a softcap times its slope
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::score_gradients() {
  Worker<kConfig>& worker = scores.worker;
  const u32 delta = worker.shared.delta(worker.rO.slot) + worker.lane % 4 * 8;
  Floats2 d;
  const u32 gate = scores.gate_place();
  if constexpr (kConfig.options.dropout) {
    scores.for_dropped([&](int i) { rGradS[i] = 0.0F; });
  }
#pragma unroll
  for (int i = 0; i < kM / 4; i += 4) {
    u32 gates[4] = {};
    Bytes16 slopes[2];
    if constexpr (kConfig.logits.gated) scores.load_slopes(slopes, i / 4);
    if constexpr (kConfig.logits.softcap) {
      const Bytes16 g = load_shared_16(gate + i / 4 * 4096);
      gates[0] = g.x, gates[1] = g.y, gates[2] = g.z, gates[3] = g.w;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (e % 2 == 0) d = load_shared_8(delta + (i + e) / 2 * 32);
      const u32 p = scores.rP[i + e];
      float a = rGradS[2 * (i + e)], b = rGradS[2 * (i + e) + 1];
      if constexpr (kConfig.options.dropout) {
        // (B4) Z dP / (1 - p)
        const float scale = scores.options->dropout.scale;
        a = __fmaf_rn(a, scale, -d.x);
        b = __fmaf_rn(b, scale, -d.y);
      } else {
        a -= d.x;
        b -= d.y;
      }
      if constexpr (kConfig.two_plane) {
        a *= scores.rS[2 * (i + e)];
        b *= scores.rS[2 * (i + e) + 1];
      } else {
        a *= widen<kElement>(p & 0xffffU);
        b *= widen_high<kElement>(p);
      }
      if constexpr (kConfig.logits.softcap) {
        a *= widen<Element::fp16>(gates[e] & 0xffffU);
        b *= widen_high<Element::fp16>(gates[e]);
      }
      if constexpr (kConfig.logits.gated) {
        // Nothing comes through a hidden pair, an infinite slope neither.
        const bool hidden_a =
            kConfig.two_plane ? scores.rS[2 * (i + e)] == 0.0F : (p & 0xffffU) == 0;
        const bool hidden_b = kConfig.two_plane ? scores.rS[2 * (i + e) + 1] == 0.0F : p >> 16 == 0;
        const Floats2 slope = scores.slopes_of(slopes, 2 * e);
        a = hidden_a ? 0.0F : a * slope.x;
        b = hidden_b ? 0.0F : b * slope.y;
      }
      if constexpr (kConfig.two_plane) {
        pack_planes<kElement>(rdS[i + e], rdSlow[i + e], a, b);
      } else {
        rdS[i + e] = pack<kElement>(a, b);
      }
    }
  }
}

/// dS^T to shared memory: panels of 64 queries x 128 keys.
template <Config kConfig>
template <int kWords>
__forceinline__ void Consumer<kConfig>::store_ds(const u32 (&of)[kWords]) {
  Worker<kConfig>& worker = scores.worker;
  const int row = worker.warpgroup * 64 + worker.warp * 16 + worker.lane % 16;
  const u32 to = worker.shared.ds(buffers.slot) + row * kPanelRowBytes;
#pragma unroll
  for (int k = 0; k < kM / 16; ++k) {
    const u32 words[4] = {of[4 * k], of[4 * k + 1], of[4 * k + 2], of[4 * k + 3]};
    const int chunk = (k % 4 * 2 + worker.lane / 16) ^ (row % 8);
    store_matrix_x4(to + k / 4 * (kBlockN * kPanelRowBytes) + chunk * 16, words);
  }
  if constexpr (kConfig.listed() && !kConfig.passes) {
    if (worker.warpgroup == 0 && worker.thread == 0) {
      store_shared_4(worker.shared.ds_of(buffers.slot), static_cast<u32>(scores.bh));
      store_shared_4(worker.shared.ds_of(buffers.slot) + 4, static_cast<u32>(scores.block));
    }
  }
  fence_async_shared();
  __syncwarp();
  worker.release(worker.shared.ds_full(buffers.slot));
}

// ---- rows that see no key

/// Whether the block may have some. Uniform.
template <Config kConfig>
__forceinline__ bool Consumer<kConfig>::may_hide_rows() const {
  const Worker<kConfig>& worker = scores.worker;
  if constexpr (kConfig.picks_rows()) return true;
  const Diagonals d = diagonals<kConfig>(worker.args, worker.job);
  const int first = scores.block * kM, last = first + kM - 1;
  return first + d.high <= 0 ||
         (kConfig.mask == Mask::both && last + d.low >= keys_of<kConfig>(worker.args, worker.job));
}
/// They add nothing, whatever they hold: their P is 0, but 0 times NaN is NaN.
/// So Q, dO and delta become 0 where they lie, before dV (B3), dP (B4), dK (B9). CONTRACT 3
/// Both warpgroups come here with the same block, whose S they are done with.
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::hide_rows() {
  Worker<kConfig>& worker = scores.worker;
  if constexpr (!kConfig.hides_rows() && !kConfig.picks_rows()) return;
  if (!may_hide_rows()) return;
  const u32 offsets = worker.shared.offset(worker.rQ.slot);
  const auto sees_nothing = [&](int row) {
    return load_shared_f32(offsets + 4 * static_cast<u32>(row)) == -infinity();
  };
  bool any = false;
#pragma unroll
  for (int row = 0; row < kM; row += 32) any |= sees_nothing(row + worker.lane);
  if (!__any_sync(~0U, any)) return;
  sync_hiding();  // nobody reads Q any more
  constexpr int kPanelsQ = SharedPlan::panels(kD), kPanels = kPanelsQ + SharedPlan::panels(kDv);
  const int t = opaque(worker.warpgroup * 128 + worker.thread);
#pragma unroll 1
  for (int i = t; i < kPanels * kM * 8; i += 256) {
    const int panel = i / (kM * 8), at = i % (kM * 8);
    if (!sees_nothing(at / 8)) continue;
    const u32 to =
        panel < kPanelsQ
            ? worker.shared.q(worker.rQ.slot) + panel * (kM * kPanelRowBytes)
            : worker.shared.d_o(worker.rO.slot) + (panel - kPanelsQ) * (kM * kPanelRowBytes);
    store_shared_16(to + at * 16, 0.0F, 0.0F, 0.0F, 0.0F);
  }
  if (t < kM && sees_nothing(t)) store_shared_4(worker.shared.delta(worker.rO.slot) + 4 * t, 0);
  if constexpr (kConfig.logits.softcap) hide_slopes(offsets);
  fence_async_shared();
  sync_hiding();  // the zeros are there, for all
}
/// NOTE: a consumer that passes over blocks comes here before or after the other's sync_consumers()
/// at a tile's start.
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::sync_hiding() const {
  if constexpr (kConfig.passes) {
    named_barrier_sync(2, 256);
  } else {
    scores.worker.sync_consumers();
  }
}
/// The softcap's slopes, as modify() left them for this thread: those of a NaN in Q are NaN.
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::hide_slopes(u32 offsets) {
#pragma unroll 1
  for (int j = 0; j < kM / 8; ++j) {
    const Floats2 l = load_shared_8(offsets + j * 32 + scores.worker.lane % 4 * 8);
    const u32 kept = (l.x == -infinity() ? 0U : 0xffffU) | (l.y == -infinity() ? 0U : ~0xffffU);
#pragma unroll
    for (int r = 0; r < 2; ++r) {  // two rows of a column
      const u32 at = scores.gate_place() + j / 2 * 4096 + (j % 2 * 2 + r) * 4;
      store_shared_4(at, load_shared_4(at) & kept);
    }
  }
}

// ---- steps

/// Entry: P of (bh, block) is ready, nothing is in flight. Exit: the same for the next block.
/// No branch may lie between a product and its wait, or ptxas serialises them (C7514).
template <Config kConfig>
template <bool kMasked, bool kLast>
__forceinline__ void Consumer<kConfig>::step(int next_bh, int next_block) {
  if constexpr (kConfig.two_plane) {
    exact_step<kMasked, kLast>(next_bh, next_block);
  } else if constexpr (kConfig.options.dropout) {
    dropout_step<kMasked, kLast>(next_bh, next_block);
  } else {
    keys_step<kMasked, kLast>(next_bh, next_block);
  }
}
/// One thing after the other: dS in two planes, each a step of dQ.
template <Config kConfig>
template <bool kMasked, bool kLast>
__forceinline__ void Consumer<kConfig>::exact_step(int next_bh, int next_block) {
  Worker<kConfig>& worker = scores.worker;
  worker.wait_do();
  hide_rows();
  take_dropout<kConfig>(scores, scores.bh, scores.block);
  scores.drop(scores.rP);
  scores.drop(scores.rPlow);
  issue_dv(scores.rP);
  issue_dv(scores.rPlow);
  wgmma_wait<0>();
  pin(rDv);
  issue_dp();
  wgmma_wait<0>();
  pin(rGradS);
  score_gradients();
  issue_dk(worker.rQ.slot, rdS);
  issue_dk(worker.rQ.slot, rdSlow);
  await_buffer();
  store_ds(rdS);
  buffers.advance();
  await_buffer();
  store_ds(rdSlow);
  buffers.advance();
  wgmma_wait<0>();
  pin(rDk);
  worker.release(worker.shared.q_empty(worker.rQ.slot));
  worker.release(worker.shared.do_empty(worker.rO.slot));
  worker.rQ.advance();
  worker.rO.advance();
  if constexpr (kLast) {
    if constexpr (!kConfig.v_registers()) worker.release(worker.shared.v_empty());
    worker.release(worker.shared.k_empty(worker.rK.slot));
    next_k();
  } else {
    take_next_mask<false>(next_bh, next_block);
    worker.wait_q();
    const u32 listed = scores.template take_listed<kMasked>();
    if constexpr (kMasked) take_next_mask<true>(next_bh, next_block);
    scores.enter_block(kConfig.listed() ? scores.block : next_block);
    scores.issue_scores();
    wgmma_wait<0>();
    pin(scores.rS);
    take_next(next_bh, next_block);
    scores.template probabilities<kMasked>(listed);
  }
}
/// Nothing waits for the other warpgroup, whose products run under what is worked
/// out here. At most P, dP and the sums are held at a time, or S, P and the sums: 208 registers.
template <Config kConfig>
template <bool kMasked, bool kLast>
__forceinline__ void Consumer<kConfig>::keys_step(int next_bh, int next_block) {
  Worker<kConfig>& worker = scores.worker;
  worker.wait_do();
  hide_rows();
  issue_dp();
  issue_dv(scores.rP);
  wgmma_wait<0>();
  pin(rGradS);
  pin(rDv);
  if constexpr (kLast && !kConfig.v_registers() && !kConfig.sums.split)
    worker.release(worker.shared.v_empty());
  score_gradients();
  await_buffer();
  store_ds(rdS);
  buffers.advance();
  worker.release(worker.shared.do_empty(worker.rO.slot));
  worker.rO.advance();
  const u32 stage_q = worker.rQ.slot;
  worker.rQ.advance();
  issue_dk(stage_q, rdS);
  finish_step<kMasked, kLast>(stage_q, next_bh, next_block);
}
/// The same with dropout: dS is made of P, dV of what is kept of it, so that dV comes after dS. P
/// has left before S of the next block takes its registers.
template <Config kConfig>
template <bool kMasked, bool kLast>
__forceinline__ void Consumer<kConfig>::dropout_step(int next_bh, int next_block) {
  Worker<kConfig>& worker = scores.worker;
  worker.wait_do();
  hide_rows();
  issue_dp();
  wgmma_wait<0>();
  pin(rGradS);
  if constexpr (kLast && !kConfig.v_registers() && !kConfig.sums.split)
    worker.release(worker.shared.v_empty());
  score_gradients();
  scores.drop(scores.rP);
  issue_dv(scores.rP);
  await_buffer();
  store_ds(rdS);
  buffers.advance();
  const u32 stage_q = worker.rQ.slot;
  worker.rQ.advance();
  issue_dk(stage_q, rdS);
  wgmma_wait<1>();
  pin(rDv);
  pin(scores.rP);
  worker.release(worker.shared.do_empty(worker.rO.slot));
  worker.rO.advance();
  finish_step<kMasked, kLast>(stage_q, next_bh, next_block);
}
/// The end of a step, dK issued: S and P of the next block, and what is released.
template <Config kConfig>
template <bool kMasked, bool kLast>
__forceinline__ void Consumer<kConfig>::finish_step(u32 stage_q, int next_bh, int next_block) {
  Worker<kConfig>& worker = scores.worker;
  u32 listed = ~0U;
  if constexpr (!kLast) {
    take_next_mask<false>(next_bh, next_block);
    worker.wait_q();
    listed = scores.template take_listed<kMasked>();
    if constexpr (kMasked) take_next_mask<true>(next_bh, next_block);
    scores.enter_block(kConfig.listed() ? scores.block : next_block);
    scores.issue_scores();
    if constexpr (Scores<kConfig>::kDropsAhead) {
      // Beside a list the stage of Q has told what is next.
      take_dropout<kConfig>(scores, kConfig.listed() ? scores.bh : next_bh,
                            kConfig.listed() ? scores.block : next_block);
    }
  }
  wgmma_wait<0>();
  pin(rDk);
  pin(rdS);
  worker.release(worker.shared.q_empty(stage_q));
  if constexpr (kLast) {
    // A part lets go of V and K later: their rows stage its sums.
    if constexpr (!kConfig.sums.split || kConfig.shape.k_stages == 1)
      worker.release(worker.shared.k_empty(worker.rK.slot));
    next_k();
  } else {
    pin(scores.rS);
    take_next(next_bh, next_block);
    scores.template probabilities<kMasked>(listed);
  }
}
/// A list has told by the stage of Q what is next.
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::take_next(int next_bh, int next_block) {
  if constexpr (kConfig.listed()) return;
  scores.bh = next_bh;
  scores.block = next_block;
}
/// Before the wait for Q, which keeps the loads from moving down to where they are used first; of
/// a list behind it, where it does not have the block whole.
template <Config kConfig>
template <bool kBehind>
__forceinline__ void Consumer<kConfig>::take_next_mask(int next_bh, int next_block) {
  if constexpr (kBehind == kConfig.listed())
    scores.take_mask(kBehind ? scores.bh : next_bh, kBehind ? scores.block : next_block);
}
/// dQ of what was stored in the next buffer of dS before has been worked out.
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::await_buffer() const {
  mbarrier_wait(scores.worker.shared.ds_empty(buffers.slot), buffers.parity ^ 1);
}
/// The same of all that were stored.
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::await_buffers() const {
  await_buffer();
  Ring<2> other = buffers;
  other.advance();
  mbarrier_wait(scores.worker.shared.ds_empty(other.slot), other.parity ^ 1);
}

template <Config kConfig>
__forceinline__ void Consumer<kConfig>::first_step(const BlockRange& range) {
  Worker<kConfig>& worker = scores.worker;
  scores.block = range.begin;
  worker.await_producer(worker.shared.k_full(worker.rK.slot), worker.rK.parity);
  worker.wait_q();
  const u32 listed = scores.template take_listed<true>();
  scores.take_mask(scores.bh, scores.block);
  scores.enter_block(scores.block);
  scores.issue_scores();
  if constexpr (Scores<kConfig>::kDropsAhead)
    take_dropout<kConfig>(scores, scores.bh, scores.block);
  wgmma_wait<0>();
  pin(scores.rS);
  const int first = kConfig.listed() ? range.begin : scores.block;
  if (first < range.full_begin || first >= range.full_end) {
    scores.template probabilities<true>(listed);
  } else {
    scores.template probabilities<false>();
  }
  mbarrier_wait(worker.shared.v_full(), worker.v_parity());
  if constexpr (kConfig.v_registers()) {
    load_operand<kDv>(rV, worker.shared.v());
    __syncwarp();  // all lanes have read
    worker.release(worker.shared.v_empty());
  }
}

}  // namespace tilewise::bwd_sm90
