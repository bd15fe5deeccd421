/// bwd_sm90: head dims above 128. Two warpgroups share a tile of 64 keys and divide the products:
///
///   Values   S = K Q^T, P, dV += P^T dO   leaves P (with a softcap times its slope)
///   Keys     dP = V dO^T, dS = P (dP - delta), dK += dS^T Q
///
/// Values runs ahead of Keys by the two buffers of P between them. P, dS are A operands from
/// registers; so is, where shared memory has no room for it, half of K and of V. dV and dK leave
/// from the places of the last dO and Q. dQ has a kernel of its own, bwd_dq_sm90.
#pragma once

#include "cuda/kernels/bwd_sm90/large_dim_sums.cuh"
#include "cuda/kernels/bwd_sm90/scores.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// Takes jobs; `role` computes the tiles.
template <Config kConfig, class Role>
__forceinline__ void run_jobs(Role& role, Worker<kConfig>& worker) {
  worker.fetch_job();
  while (worker.job.kind != JobKind::end) {
    if (worker.job.kind == JobKind::tile) {
      worker.signal_done();  // before any wait for the producer
      role.run_tile();
    } else {
      worker.run_prepare();
    }
    worker.fetch_job();
  }
  worker.signal_done();
  if (worker.lane == 0) bulk_wait_read();  // shared memory must outlive the copies out of it
}

template <Config kConfig>
struct LargeDimValues {
  static constexpr int kM = kConfig.shape.block_m;
  static constexpr int kDv = kConfig.head_dim_v;
  static constexpr Element kElement = kConfig.element;
  static constexpr SharedPlan kPlan{kConfig};

  Scores<kConfig> scores;
  const u64 dOt;          ///< dO as B of dV
  Ring<2> buffers, last;  ///< of P; the one that was left last
  LargeDimSums<kDv> rDv;

  __forceinline__ LargeDimValues(const Args& a, u32 shared_base)
      : scores(a, shared_base, 0),
        dOt(panel_descriptor(scores.worker.shared.d_o(0), kM * kPanelRowBytes)) {}

  /// (B3) dV += P^T dO
  __forceinline__ void issue_dv() {
    const u64 d_o = dOt + scores.worker.rO.slot * (kPlan.do_stage / 16);
    wgmma_fence();
    rDv.template add_product<kElement>(scores.rP, d_o);
    if constexpr (kConfig.two_plane) rDv.template add_product<kElement>(scores.rPlow, d_o);
    wgmma_commit();
  }
  /// P, with a softcap times its slope (B7), to the next warpgroup, once it has taken the last.
  __forceinline__ void leave_p() {
    if constexpr (kConfig.two_plane && kConfig.logits.softcap) {
      u32 high[kM / 4], low[kM / 4];
#pragma unroll
      for (int i = 0; i < kM / 4; ++i) {
        const u32 gate = scores.rGate[i];
        pack_planes<kElement>(high[i], low[i],
                              scores.rS[2 * i] * widen<Element::fp16>(gate & 0xffffU),
                              scores.rS[2 * i + 1] * widen_high<Element::fp16>(gate));
      }
      leave_plane<false>(high);
      leave_plane<false>(low);
    } else if constexpr (kConfig.two_plane) {
      leave_plane<false>(scores.rP);
      leave_plane<false>(scores.rPlow);
    } else {
      leave_plane<kConfig.logits.softcap>(scores.rP);
    }
  }
  template <bool kGated>
  __forceinline__ void leave_plane(const u32 (&plane)[kM / 4]) {
    Worker<kConfig>& worker = scores.worker;
    mbarrier_wait(worker.shared.p_empty(buffers.slot), buffers.parity ^ 1);
    const u32 to = worker.shared.p(buffers.slot) + worker.thread * 16;
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) {
      u32 words[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        words[e] = plane[4 * i + e];
        if constexpr (kGated) {
          const u32 p = words[e], gate = scores.rGate[4 * i + e];
          words[e] =
              pack<kElement>(widen<kElement>(p & 0xffffU) * widen<Element::fp16>(gate & 0xffffU),
                             widen_high<kElement>(p) * widen_high<Element::fp16>(gate));
        }
      }
      store_shared_16(to + i * 2048, __uint_as_float(words[0]), __uint_as_float(words[1]),
                      __uint_as_float(words[2]), __uint_as_float(words[3]));
    }
    __syncwarp();
    worker.release(worker.shared.p_full(buffers.slot));
    last = buffers;
    buffers.advance();
  }
  /// S has become P: its Q and offsets have been read.
  __forceinline__ void pass_q() {
    Worker<kConfig>& worker = scores.worker;
    __syncwarp();
    worker.release(worker.shared.q_empty(worker.rQ.slot));
    worker.rQ.advance();
  }

  /// Entry: P of (bh, block) is ready, nothing is in flight. Exit: the same for the next block.
  template <bool kMasked>
  __forceinline__ void step(int next_bh, int next_block) {
    Worker<kConfig>& worker = scores.worker;
    leave_p();
    worker.wait_do();
    issue_dv();
    worker.wait_q();
    scores.issue_scores();
    wgmma_wait<1>();
    pin_dv();
    worker.release(worker.shared.do_empty(worker.rO.slot));
    worker.rO.advance();
    wgmma_wait<0>();
    pin(scores.rS);
    scores.bh = next_bh;
    scores.block = next_block;
    scores.template probabilities<kMasked>();
    pass_q();
  }
  /// The last block's. Its dO stays: dV leaves by way of its place.
  __forceinline__ void last_step() {
    Worker<kConfig>& worker = scores.worker;
    worker.release(worker.shared.k_empty(worker.rK.slot));
    leave_p();
    worker.wait_do();
    issue_dv();
    wgmma_wait<0>();
    pin_dv();
  }
  __forceinline__ void pin_dv() {
    rDv.pin_all();
    pin(scores.rP);
    if constexpr (kConfig.two_plane) pin(scores.rPlow);
  }

  __forceinline__ void first_step(const BlockRange& range) {
    Worker<kConfig>& worker = scores.worker;
    scores.block = range.begin;
    mbarrier_wait(worker.shared.k_full(worker.rK.slot), worker.rK.parity);
    if constexpr (kConfig.half_registers()) {
      load_rows(scores.rHalf, worker.shared.landing(), worker.warp, worker.lane);
      __syncwarp();  // all lanes have read
      worker.release(worker.shared.landing_empty());
    }
    worker.wait_q();
    scores.issue_scores();
    wgmma_wait<0>();
    pin(scores.rS);
    if (scores.block < range.full_begin || scores.block >= range.full_end) {
      scores.template probabilities<true>();
    } else {
      scores.template probabilities<false>();
    }
    pass_q();
  }

  __forceinline__ void run_tile() {
    Worker<kConfig>& worker = scores.worker;
    const BlockRange range = query_range<kConfig>(worker.args, worker.job);
    rDv.clear();
    if (range.begin < range.end) {
      const int head = worker.job.head * worker.args.group,
                of = entry_of<kConfig>(worker.job) * worker.args.heads_q + head;
      scores.bh = of;
      scores.load_slope(head);
      first_step(range);
      int next = range.begin + 1;
#pragma unroll 1
      for (int g = 0; g < worker.args.group; ++g) {
        if (g > 0) {
          scores.load_slope(head + g);
          next = range.begin;
        }
        // A block that follows another head's is taken as masked, whatever it is: one loop less.
        int masked_end = max(range.full_begin, range.begin + 1);
#pragma unroll 1
        while (true) {
#pragma unroll 1
          for (; next < masked_end; ++next) step<true>(of + g, next);
#pragma unroll 1
          for (; next < range.full_end; ++next) step<false>(of + g, next);
          if (next >= range.end) break;
          masked_end = range.end;
        }
      }
      last_step();
      // The other warpgroup has taken the last P: it is done with V and dO.
      mbarrier_wait(worker.shared.p_empty(last.slot), last.parity);
      worker.rK.advance();
    } else {
      worker.wait_q();
      pass_q();
      worker.wait_do();
    }
    leave_tile(worker, rDv, 1.0F, worker.shared.d_o(worker.rO.slot), worker.args.dv,
               worker.shared.do_empty(worker.rO.slot));
    worker.rO.advance();
  }
};

template <Config kConfig>
struct LargeDimKeys {
  static constexpr int kM = kConfig.shape.block_m, kBlockN = kConfig.shape.block_n;
  static constexpr int kD = kConfig.head_dim, kDv = kConfig.head_dim_v;
  static constexpr Element kElement = kConfig.element;
  static constexpr SharedPlan kPlan{kConfig};
  using Gradients = Wgmma<kElement, kM>;

  Worker<kConfig> worker;
  const u64 dV, dO, dQt;  ///< V as A, dO as B of dP; Q as B of dK
  Ring<2> rP;             ///< buffers of P
  float rGradS[kM / 2];   ///< dP^T, then dS^T
  LargeDimSums<kD> rDk;
  u32 rdS[kM / 4];
  u32 rdSlow[kConfig.two_plane ? kM / 4 : 1];
  u32 rHalf[kConfig.half_registers() ? kDv / 8 : 1];  ///< half of V as A fragments

  __forceinline__ LargeDimKeys(const Args& a, u32 shared_base)
      : worker(a, shared_base, 1),
        dV(panel_descriptor(worker.shared.v(), 16)),
        dO(panel_descriptor(worker.shared.d_o(0), 16)),
        dQt(panel_descriptor(worker.shared.q(0), kM * kPanelRowBytes)) {}

  /// (B4) dP^T = V dO^T
  __forceinline__ void issue_dp() {
    const u64 d_o = dO + worker.rO.slot * (kPlan.do_stage / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDv / 16; ++i) {
      if constexpr (kConfig.half_registers()) {
        if (i >= kDv / 32) {
          const u32* a = rHalf + 4 * (i - kDv / 32);
          Gradients::multiply_register_rows(rGradS, a[0], a[1], a[2], a[3], d_o + panel_step<kM>(i),
                                            1);
          continue;
        }
      }
      Gradients::multiply_shared(rGradS, dV + panel_step<kBlockN>(i), d_o + panel_step<kM>(i),
                                 i != 0);
    }
    wgmma_commit();
  }
  /// (B9) dK += dS^T Q
  __forceinline__ void issue_dk() {
    const u64 q = dQt + worker.rQ.slot * (kPlan.q_stage / 16);
    wgmma_fence();
    rDk.template add_product<kElement>(rdS, q);
    if constexpr (kConfig.two_plane) rDk.template add_product<kElement>(rdSlow, q);
    wgmma_commit();
  }
  /// (B5) dS = P (dP - delta), in the place of dP
  __forceinline__ void score_gradients() {
    const u32 delta = worker.shared.delta(worker.rO.slot) + worker.lane % 4 * 8;
    const u32 from = worker.shared.p(rP.slot) + worker.thread * 16;
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) {
      const Bytes16 x = load_shared_16(from + i * 2048);
      const u32 p[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int word = 4 * i + e;
        const Floats2 d = load_shared_8(delta + word / 2 * 32);
        rGradS[2 * word] = widen<kElement>(p[e] & 0xffffU) * (rGradS[2 * word] - d.x);
        rGradS[2 * word + 1] = widen_high<kElement>(p[e]) * (rGradS[2 * word + 1] - d.y);
      }
    }
  }
  /// The same of P in two planes, which come one after the other.
  __forceinline__ void exact_gradients() {
    u32 p[2][kM / 4];
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
      mbarrier_wait(worker.shared.p_full(rP.slot), rP.parity);
      const u32 from = worker.shared.p(rP.slot) + worker.thread * 16;
#pragma unroll
      for (int i = 0; i < kM / 16; ++i) {
        const Bytes16 x = load_shared_16(from + i * 2048);
        p[plane][4 * i] = x.x, p[plane][4 * i + 1] = x.y, p[plane][4 * i + 2] = x.z;
        p[plane][4 * i + 3] = x.w;
      }
      if (plane == 0) {
        __syncwarp();  // all lanes have read
        worker.release(worker.shared.p_empty(rP.slot));
        rP.advance();
      }
    }
    const u32 delta = worker.shared.delta(worker.rO.slot) + worker.lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < kM / 4; ++i) {
      const Floats2 d = load_shared_8(delta + i / 2 * 32);
      const float a = widen<kElement>(p[0][i] & 0xffffU) + widen<kElement>(p[1][i] & 0xffffU);
      const float b = widen_high<kElement>(p[0][i]) + widen_high<kElement>(p[1][i]);
      rGradS[2 * i] = a * (rGradS[2 * i] - d.x);
      rGradS[2 * i + 1] = b * (rGradS[2 * i + 1] - d.y);
    }
  }
  /// dP of a block is there: dS of it in float32.
  __forceinline__ void take_p() {
    if constexpr (kConfig.two_plane) {
      exact_gradients();
    } else {
      mbarrier_wait(worker.shared.p_full(rP.slot), rP.parity);
      score_gradients();
      // NOTE: worth nothing (lab/bwd_sm90.md, "Tried"), but what has run on a card has
      // it.
      mbarrier_wait(worker.shared.p_full(rP.slot), rP.parity);
    }
    __syncwarp();  // all lanes have read P and delta
    worker.release(worker.shared.p_empty(rP.slot));
    rP.advance();
    worker.release(worker.shared.do_empty(worker.rO.slot));
    worker.rO.advance();
  }
  __forceinline__ void pack_gradients() {
#pragma unroll
    for (int i = 0; i < kM / 4; ++i) {
      if constexpr (kConfig.two_plane) {
        pack_planes<kElement>(rdS[i], rdSlow[i], rGradS[2 * i], rGradS[2 * i + 1]);
      } else {
        rdS[i] = pack<kElement>(rGradS[2 * i], rGradS[2 * i + 1]);
      }
    }
  }
  __forceinline__ void pin_dk() {
    rDk.pin_all();
    pin(rdS);
    if constexpr (kConfig.two_plane) pin(rdSlow);
  }

  /// Entry: dS of a block is ready, nothing is in flight. Exit: the same for the next block.
  __forceinline__ void step() {
    worker.wait_q();
    issue_dk();
    worker.wait_do();
    issue_dp();
    wgmma_wait<1>();
    pin_dk();
    worker.release(worker.shared.q_empty(worker.rQ.slot));
    worker.rQ.advance();
    wgmma_wait<0>();
    pin(rGradS);
    take_p();
    pack_gradients();
  }

  __forceinline__ void run_tile() {
    const BlockRange range = query_range<kConfig>(worker.args, worker.job);
    rDk.clear();
    const int steps = (range.end - range.begin) * worker.args.group;
    if (steps > 0) {
      mbarrier_wait(worker.shared.v_full(), worker.v_parity());
      if constexpr (kConfig.half_registers()) {
        load_rows(rHalf, worker.shared.landing(), worker.warp, worker.lane);
        __syncwarp();  // all lanes have read
        worker.release(worker.shared.landing_empty());
      }
      worker.wait_do();
      issue_dp();
      wgmma_wait<0>();
      pin(rGradS);
      take_p();
      pack_gradients();
#pragma unroll 1
      for (int i = 1; i < steps; ++i) step();
      worker.release(worker.shared.v_empty());
      worker.wait_q();
      issue_dk();
      wgmma_wait<0>();
      pin_dk();
      worker.rK.advance();
    } else {
      worker.wait_do();
      __syncwarp();
      worker.release(worker.shared.do_empty(worker.rO.slot));
      worker.rO.advance();
      worker.wait_q();
    }
    // By way of the last Q, whose scores the last P came from.
    leave_tile(worker, rDk, worker.args.scale, worker.shared.q(worker.rQ.slot), worker.args.dk,
               worker.shared.q_empty(worker.rQ.slot));
    worker.rQ.advance();
  }
};

}  // namespace tilewise::bwd_sm90
