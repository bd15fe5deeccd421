/// bwd_sm90: head dims above 128: the warpgroup that works out dQ (bwd_sm90_wide.cuh).
#pragma once

#include "cuda/kernels/bwd_sm90_worker.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

template <Config kConfig>
struct WideQueries : Worker<kConfig> {
  using Base = Worker<kConfig>;
  using Base::args;
  using Base::job;
  using Base::kBlockN;
  using Base::kElement;
  using Base::kM;
  using Base::kPlan;
  using Base::lane;
  using Base::release;
  using Base::rK;
  using Base::shared;
  using Base::warp;
  static constexpr bool kReadsRows = false;
  static constexpr int kColumns = kConfig.columns_dq();
  static constexpr int kPart = kConfig.dq_in_turn ? 32 : 64;  ///< columns of a product
  using Product = Wgmma<kElement, kPart>;

  const u64 dSt, dKt;  ///< dS as A, the first panel of K as B of dQ
  Ring<kConfig.buffers> buffers;
  float rDq[kConfig.dq_in_turn ? 2 : 1][kPart / 2];

  __forceinline__ WideQueries(const Args& a, u32 shared_base)
      : Base(a, shared_base, 2),
        dSt(panel_descriptor(shared.ds(0), 16)),
        dKt(panel_descriptor(shared.k(0), kBlockN * kPanelRowBytes)) {}

  /// (B8) dQ = dS K of a block of queries, or of a plane of its dS, added to its sums
  __forceinline__ void step(int pair, int block, bool first_plane = true) {
    float* to =
        args.dq_sum + (static_cast<i64>(pair) * args.rows_q + block * kM + 16 * warp) * kColumns;
    if constexpr (kConfig.deterministic) {
      __syncwarp();
      if (lane == 0 && first_plane) {
        this->pass_turn();
        this->await_turn(this->turn_at(pair, block), block);
      } else if (lane == 0) {
        bulk_wait();  // the first has been added
      }
      __syncwarp();
    }
    mbarrier_wait(shared.ds_full(buffers.slot), buffers.parity);
    if constexpr (kConfig.dq_in_turn) {
      // One straight line: nothing may be in flight over a back edge (C7514).
      issue_product(0);
#pragma unroll
      for (int part = 0; part < kColumns / kPart - 1; ++part) {
        issue_product(part + 1);
        wgmma_wait<1>();
        pin(rDq[part % 2]);
        add(part, to);
      }
      wgmma_wait<0>();
      release(shared.ds_empty(buffers.slot));
      pin(rDq[1]);
      add(kColumns / kPart - 1, to);
    } else {
#pragma unroll 1
      for (int part = 0; part < kColumns / kPart; ++part) {
        issue_product(part);
        wgmma_wait<0>();
        pin(rDq[0]);
        if (part == kColumns / kPart - 1) release(shared.ds_empty(buffers.slot));
        add(part, to);
      }
    }
    buffers.advance();
  }
  /// dQ of `part`, the part-th kPart columns
  __forceinline__ void issue_product(int part) {
    const u64 ds = dSt + buffers.slot * (kPlan.ds_buffer / 16);
    const u64 k = dKt + part * kPart / 64 * (kBlockN * kPanelRowBytes / 16) +
                  (kConfig.dq_in_turn ? part % 2 * (kPart * 2 / 16) : 0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kBlockN / 16; ++i) {
      Product::multiply_transposed(rDq[kConfig.dq_in_turn ? part % 2 : 0], ds + i * kStepRows,
                                   k + i * kStepRows, i != 0);
    }
    wgmma_commit();
  }
  __forceinline__ void add(int part, float* to) {
    const float(&r)[kPart / 2] = rDq[kConfig.dq_in_turn ? part % 2 : 0];
    to += part * (16 * kPart);
    if constexpr (kConfig.bulk_dq) {
      add_bulk(r, part, to);
    } else {
#pragma unroll
      for (int i = 0; i < kPart / 8; ++i) {
        const float four[4] = {r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]};
        add_global_x4(to + i * 128 + lane * 4, four);
      }
    }
  }
  /// Stages the warp's 16 rows x kPart columns; the copy engine adds them.
  __forceinline__ void add_bulk(const float (&r)[kPart / 2], int part, float* to) const {
    constexpr int kBytes = 16 * kPart * 4;
    const u32 stage = shared.dq(warp) + (kConfig.dq_in_turn ? part % 2 * kBytes : 0);
    if (lane == 0) bulk_wait_read<kConfig.dq_in_turn ? 1 : 0>();
    __syncwarp();  // the copy engine has read what was staged before
#pragma unroll
    for (int i = 0; i < kPart / 8; ++i) {
      store_shared_16(stage + (i * 32 + lane) * 16, r[4 * i], r[4 * i + 1], r[4 * i + 2],
                      r[4 * i + 3]);
    }
    fence_async_shared();
    __syncwarp();
    if (lane == 0) {
      bulk_add(to, stage, kBytes);
      bulk_commit();
    }
  }

  __forceinline__ void run_tile() {
    const BlockRange range = query_range<kConfig>(args, job);
    mbarrier_wait(shared.k_full(rK.slot), rK.parity);
    rK.advance();
    const int of = job.batch * args.heads_q + job.head * args.group;
#pragma unroll 1
    for (int g = 0; g < args.group; ++g) {
#pragma unroll 1
      for (int block = range.begin; block < range.end; ++block) {
        step(of + g, block);
        if constexpr (kConfig.exact) step(of + g, block, false);
      }
    }
    __syncwarp();  // the signal of lane 0 is for the additions of all
    if (lane == 0) {
      bulk_wait();
      fence_async();
      if constexpr (kConfig.deterministic) this->pass_turn();
      signal_add(args.finished + job.batch * args.heads_k + job.head, 1);
    }
  }
};

}  // namespace tilewise::bwd_sm90
