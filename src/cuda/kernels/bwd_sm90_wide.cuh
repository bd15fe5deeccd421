/// bwd_sm90: head dims above 128. Three warpgroups share a tile of 64 keys and divide the products:
///
///   Values   S = K Q^T, P, dV += P^T dO             leaves P (with a softcap times its slope)
///   Keys     dP = V dO^T, dS = P (dP - delta), dK += dS^T Q    leaves dS
///   Queries  dQ = dS K, 64 columns at a time, added to the sums
///
/// Each hands one buffer of 8 kB to the next and runs ahead of it by what a buffer allows. P, dS
/// are A operands from registers; dV and dK leave from the places of V and K.
#pragma once

#include "cuda/kernels/bwd_sm90_scores.cuh"
#include "cuda/kernels/bwd_sm90_wide_queries.cuh"
#include "cuda/kernels/bwd_sm90_wide_sums.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// Takes jobs; `role` computes the tiles, and its warpgroup, where it reads Q and dO, the others.
template <class Role>
__forceinline__ void run_jobs(Role& role) {
  bool staged = false;  ///< the job before was converted: its rows may still be read
  role.fetch_job();
  while (role.job.kind != JobKind::end) {
    if (role.job.kind == JobKind::tile) {
      role.signal_done();  // before any wait for the producer
      if (staged) {
        if (role.warpgroup == 0 && role.thread == 0) bulk_wait_read();
        role.sync_all();
      }
      role.run_tile();
      staged = false;
    } else if (role.job.kind == JobKind::convert) {
      if constexpr (Role::kReadsRows) {
        role.run_convert();
      } else {
        role.sync_all();
      }
      staged = true;
    } else if constexpr (Role::kReadsRows) {
      role.run_prepare();
    }
    role.fetch_job();
  }
  role.signal_done();
  if (role.lane == 0) bulk_wait_read();  // shared memory must outlive the copies out of it
}

template <Config kConfig>
struct WideValues : Scores<kConfig> {
  using Base = Scores<kConfig>;
  using Base::args;
  using Base::block;
  using Base::job;
  using Base::kDv;
  using Base::kElement;
  using Base::kM;
  using Base::kPlan;
  using Base::lane;
  using Base::pair;
  using Base::release;
  using Base::rK;
  using Base::rO;
  using Base::rP;
  using Base::rQ;
  using Base::rS;
  using Base::shared;
  using Base::thread;
  using Base::warp;
  static constexpr bool kReadsRows = true;

  const u64 dOt;                        ///< dO as B of dV
  Ring<kConfig.buffers> buffers, last;  ///< of P; the one that was left last
  WideSums<kDv> rDv;

  __forceinline__ WideValues(const Args& a, u32 shared_base)
      : Base(a, shared_base, 0), dOt(panel_descriptor(shared.d_o(0), kM * kPanelRowBytes)) {}

  /// (B3) dV += P^T dO
  __forceinline__ void issue_dv() {
    const u64 d_o = dOt + rO.slot * (kPlan.do_stage / 16);
    wgmma_fence();
    rDv.template add_product<kElement>(rP, d_o);
    if constexpr (kConfig.exact) rDv.template add_product<kElement>(this->rPlow, d_o);
    wgmma_commit();
  }
  /// P, with a softcap times its slope (B7), to the next warpgroup, once it has taken the last.
  __forceinline__ void leave_p() {
    if constexpr (kConfig.exact && kConfig.softcap) {
      u32 high[kM / 4], low[kM / 4];
#pragma unroll
      for (int i = 0; i < kM / 4; ++i) {
        const u32 gate = this->rGate[i];
        pack_planes<kElement>(high[i], low[i], rS[2 * i] * widen<Element::fp16>(gate & 0xffffU),
                              rS[2 * i + 1] * widen_high<Element::fp16>(gate));
      }
      leave_plane<false>(high);
      leave_plane<false>(low);
    } else if constexpr (kConfig.exact) {
      leave_plane<false>(rP);
      leave_plane<false>(this->rPlow);
    } else {
      leave_plane<kConfig.softcap>(rP);
    }
  }
  template <bool kGated>
  __forceinline__ void leave_plane(const u32 (&plane)[kM / 4]) {
    mbarrier_wait(shared.p_empty(buffers.slot), buffers.parity ^ 1);
    const u32 to = shared.p(buffers.slot) + thread * 16;
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) {
      u32 words[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        words[e] = plane[4 * i + e];
        if constexpr (kGated) {
          const u32 p = words[e], gate = this->rGate[4 * i + e];
          words[e] =
              pack<kElement>(widen<kElement>(p & 0xffffU) * widen<Element::fp16>(gate & 0xffffU),
                             widen_high<kElement>(p) * widen_high<Element::fp16>(gate));
        }
      }
      store_shared_16(to + i * 2048, __uint_as_float(words[0]), __uint_as_float(words[1]),
                      __uint_as_float(words[2]), __uint_as_float(words[3]));
    }
    __syncwarp();
    release(shared.p_full(buffers.slot));
    last = buffers;
    buffers.advance();
  }
  /// S has become P: its Q and offsets have been read.
  __forceinline__ void pass_q() {
    __syncwarp();
    release(shared.q_empty(rQ.slot));
    rQ.advance();
  }

  /// Entry: P of (pair, block) is ready, nothing is in flight. Exit: the same for the next block.
  template <bool kMasked, bool kLast>
  __forceinline__ void step(int next_pair, int next_block) {
    leave_p();
    this->wait_do();
    issue_dv();
    if constexpr (kConfig.exact) wgmma_wait<0>();  // two planes take too many registers with S
    if constexpr (!kLast) {
      this->wait_q();
      this->issue_scores();
      wgmma_wait<1>();
    } else {
      wgmma_wait<0>();
    }
    rDv.pin_all();
    pin(rP);
    release(shared.do_empty(rO.slot));
    rO.advance();
    if constexpr (!kLast) {
      wgmma_wait<0>();
      pin(rS);
      pair = next_pair;
      block = next_block;
      this->template probabilities<kMasked>();
      pass_q();
    }
  }

  __forceinline__ void first_step(const BlockRange& range) {
    block = range.begin;
    mbarrier_wait(shared.k_full(rK.slot), rK.parity);
    this->wait_q();
    this->issue_scores();
    wgmma_wait<0>();
    pin(rS);
    if (block < range.full_begin || block >= range.full_end) {
      this->template probabilities<true>();
    } else {
      this->template probabilities<false>();
    }
    pass_q();
  }

  __forceinline__ void run_tile() {
    const BlockRange range = query_range<kConfig>(args, job);
    rDv.clear();
    if (range.begin < range.end) {
      const int head = job.head * args.group, of = job.batch * args.heads_q + head;
      pair = of;
      this->load_slope(head);
      first_step(range);
      int next = range.begin + 1;
#pragma unroll 1
      for (int g = 0; g < args.group; ++g) {
        if (g > 0) {
          this->load_slope(head + g);
          next = range.begin;
        }
        // A block that follows another head's is taken as masked, whatever it is: one loop less.
        int masked_end = max(range.full_begin, range.begin + 1);
#pragma unroll 1
        while (true) {
#pragma unroll 1
          for (; next < masked_end; ++next) step<true, false>(of + g, next);
#pragma unroll 1
          for (; next < range.full_end; ++next) step<false, false>(of + g, next);
          if (next >= range.end) break;
          masked_end = range.end;
        }
      }
      step<false, true>(0, 0);
      // The other warpgroup has taken the last P: it is done with V.
      mbarrier_wait(shared.p_empty(last.slot), last.parity);
    } else {
      this->await_unused();
    }
    rK.advance();
    leave_tile(*this, rDv, 1.0F, shared.v(), args.dv, shared.v_empty());
  }
};

template <Config kConfig>
struct WideKeys : Worker<kConfig> {
  using Base = Worker<kConfig>;
  using Base::args;
  using Base::job;
  using Base::kBlockN;
  using Base::kD;
  using Base::kDv;
  using Base::kElement;
  using Base::kM;
  using Base::kPlan;
  using Base::lane;
  using Base::release;
  using Base::rK;
  using Base::rO;
  using Base::rQ;
  using Base::shared;
  using Base::thread;
  using Base::warp;
  static constexpr bool kReadsRows = true;
  using Gradients = Wgmma<kElement, kM>;

  const u64 dV, dO, dQt;                    ///< V as A, dO as B of dP; Q as B of dK
  Ring<kConfig.buffers> rP, buffers, last;  ///< of P, of dS; the dS that was left last
  float rGradS[kM / 2];                     ///< dP^T
  WideSums<kD> rDk;
  u32 rdS[kM / 4];
  u32 rdSlow[kConfig.exact ? kM / 4 : 1];

  __forceinline__ WideKeys(const Args& a, u32 shared_base)
      : Base(a, shared_base, 1),
        dV(panel_descriptor(shared.v(), 16)),
        dO(panel_descriptor(shared.d_o(0), 16)),
        dQt(panel_descriptor(shared.q(0), kM * kPanelRowBytes)) {}

  /// (B4) dP^T = V dO^T
  __forceinline__ void issue_dp() {
    const u64 d_o = dO + rO.slot * (kPlan.do_stage / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDv / 16; ++i) {
      Gradients::multiply_shared(rGradS, dV + panel_step<kBlockN>(i), d_o + panel_step<kM>(i),
                                 i != 0);
    }
    wgmma_commit();
  }
  /// (B9) dK += dS^T Q
  __forceinline__ void issue_dk() {
    const u64 q = dQt + rQ.slot * (kPlan.q_stage / 16);
    wgmma_fence();
    rDk.template add_product<kElement>(rdS, q);
    if constexpr (kConfig.exact) rDk.template add_product<kElement>(rdSlow, q);
    wgmma_commit();
  }
  /// (B5) dS = P (dP - delta)
  __forceinline__ void score_gradients() {
    const u32 delta = shared.delta(rO.slot) + lane % 4 * 8;
    const u32 from = shared.p(rP.slot) + thread * 16;
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) {
      const Bytes16 x = load_shared_16(from + i * 2048);
      const u32 p[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int word = 4 * i + e;
        const Floats2 d = load_shared_8(delta + word / 2 * 32);
        rdS[word] = pack<kElement>(widen<kElement>(p[e] & 0xffffU) * (rGradS[2 * word] - d.x),
                                   widen_high<kElement>(p[e]) * (rGradS[2 * word + 1] - d.y));
      }
    }
  }
  /// The same of P in two planes, which come one after the other; dS in two.
  __forceinline__ void exact_gradients() {
    u32 p[2][kM / 4];
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
      mbarrier_wait(shared.p_full(rP.slot), rP.parity);
      const u32 from = shared.p(rP.slot) + thread * 16;
#pragma unroll
      for (int i = 0; i < kM / 16; ++i) {
        const Bytes16 x = load_shared_16(from + i * 2048);
        p[plane][4 * i] = x.x, p[plane][4 * i + 1] = x.y, p[plane][4 * i + 2] = x.z;
        p[plane][4 * i + 3] = x.w;
      }
      if (plane == 0) {
        __syncwarp();  // all lanes have read
        release(shared.p_empty(rP.slot));
        rP.advance();
      }
    }
    const u32 delta = shared.delta(rO.slot) + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < kM / 4; ++i) {
      const Floats2 d = load_shared_8(delta + i / 2 * 32);
      const float a = widen<kElement>(p[0][i] & 0xffffU) + widen<kElement>(p[1][i] & 0xffffU);
      const float b = widen_high<kElement>(p[0][i]) + widen_high<kElement>(p[1][i]);
      pack_planes<kElement>(rdS[i], rdSlow[i], a * (rGradS[2 * i] - d.x),
                            b * (rGradS[2 * i + 1] - d.y));
    }
  }
  /// dS^T, a panel of 64 queries x 64 keys, to shared memory, once the last has been used.
  __forceinline__ void leave_ds(const u32 (&plane)[kM / 4]) {
    mbarrier_wait(shared.ds_empty(buffers.slot), buffers.parity ^ 1);
    const int row = warp * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < kM / 16; ++k) {
      const u32 words[4] = {plane[4 * k], plane[4 * k + 1], plane[4 * k + 2], plane[4 * k + 3]};
      const int chunk = (k * 2 + lane / 16) ^ (row % 8);
      store_matrix_x4(shared.ds(buffers.slot) + row * kPanelRowBytes + chunk * 16, words);
    }
    fence_async_shared();
    __syncwarp();
    release(shared.ds_full(buffers.slot));
    last = buffers;
    buffers.advance();
  }

  /// Entry: dP of a block is ready, nothing is in flight. Exit: the same for the next block.
  template <bool kLast>
  __forceinline__ void step() {
    if constexpr (kConfig.exact) {
      exact_gradients();
    } else {
      mbarrier_wait(shared.p_full(rP.slot), rP.parity);
      score_gradients();
    }
    __syncwarp();  // all lanes have read P and delta
    release(shared.p_empty(rP.slot));
    rP.advance();
    release(shared.do_empty(rO.slot));
    rO.advance();
    leave_ds(rdS);
    if constexpr (kConfig.exact) leave_ds(rdSlow);
    this->wait_q();
    issue_dk();
    if constexpr (kConfig.exact) wgmma_wait<0>();  // two planes take too many registers with dP
    if constexpr (!kLast) {
      this->wait_do();
      issue_dp();
      wgmma_wait<1>();
    } else {
      wgmma_wait<0>();
    }
    rDk.pin_all();
    pin(rdS);
    release(shared.q_empty(rQ.slot));
    rQ.advance();
    if constexpr (!kLast) {
      wgmma_wait<0>();
      pin(rGradS);
    }
  }

  __forceinline__ void run_tile() {
    const BlockRange range = query_range<kConfig>(args, job);
    rDk.clear();
    const int steps = (range.end - range.begin) * args.group;
    if (steps > 0) {
      mbarrier_wait(shared.v_full(), this->v_parity());
      this->wait_do();
      issue_dp();
      wgmma_wait<0>();
      pin(rGradS);
#pragma unroll 1
      for (int i = 1; i < steps; ++i) step<false>();
      step<true>();
      // dQ of the last block has been computed: nobody needs K any more.
      mbarrier_wait(shared.ds_empty(last.slot), last.parity);
    } else {
      this->await_unused();
    }
    rK.advance();
    leave_tile(*this, rDk, args.scale, shared.k(0), args.dk, shared.k_empty(0));
  }
};

}  // namespace tilewise::bwd_sm90
