/// bwd_short_sm90: a pass over queries, dQ of 64 of them a warpgroup.
#pragma once

#include "cuda/kernels/bwd_short_sm90/worker.cuh"

namespace tilewise::bwd_short_sm90 {

using namespace tile;

/// Rows are queries, columns keys. dQ stays in registers.
template <Config kConfig>
struct QueryPass {
  static constexpr int kD = kConfig.head_dim;
  static constexpr Element kElement = kConfig.element;
  static constexpr u32 kDelta = Worker<kConfig>::kDelta;

  Worker<kConfig>& worker;
  float rS[kRows / 2];      ///< S, then P
  float rGradS[kRows / 2];  ///< dP
  u32 rdS[kRows / 4], rdSlow[kConfig.two_plane ? kRows / 4 : 1];
  bwd_sm90::LargeDimSums<kD> rDq;  ///< / scale
  float offset[2], delta[2];       ///< of the thread's two rows

  __forceinline__ explicit QueryPass(Worker<kConfig>& w) : worker(w) {}

  // ---- products
  __forceinline__ void issue_scores() {
    worker.issue_s(rS);
    worker.issue_dp(rGradS);
  }
  /// (B8) dQ += dS K
  __forceinline__ void issue_dq(u32 stage) {
    worker.template issue_sums<kConfig.two_plane>(rDq, rdS, rdSlow, worker.shared.stage(stage));
  }
  __forceinline__ void settle_dq() {
    rDq.pin_all();
    pin(rdS);
    if constexpr (kConfig.two_plane) pin(rdSlow);
  }

  // ---- scores

  /// Hidden scores become -inf: replaced, so that nothing of a hidden key leaks. CONTRACT 4, 5
  __forceinline__ void mask_keys(int first, int block) {
    const int column = block * kRows + 2 * (worker.lane % 4);
    const Diagonals d = diagonals<kConfig>(worker.args, worker.job);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int end = keys_of<kConfig>(worker.args, worker.job) - column;
      if constexpr (kConfig.mask != Mask::none)
        end = min(end, worker.row(first, r) + d.high - column);
      const int begin = kConfig.mask == Mask::both ? worker.row(first, r) + d.low - column : 0;
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          bool hidden = 8 * j + e >= end;
          if constexpr (kConfig.mask == Mask::both) hidden |= 8 * j + e < begin;
          if (hidden) rS[4 * j + 2 * r + e] = -infinity();
        }
      }
    }
  }
  /// (B1) P = exp(min(S - LSE, 0))
  template <bool kMasked>
  __forceinline__ void query_probabilities(int first, int block) {
    if constexpr (kMasked) mask_keys(first, block);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      const float x = __fmaf_rn(rS[i], worker.args.scale_log2, offset[i / 2 % 2]);
      rS[i] = min_nan(exp2_approx(x), 1.0F);
    }
  }
  /// (B5) dS = P (dP - delta), rounded. A row that sees no key has none, whatever it holds.
  __forceinline__ void query_gradients() {
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      float a = rS[2 * i] * (rGradS[2 * i] - delta[i % 2]);
      float b = rS[2 * i + 1] * (rGradS[2 * i + 1] - delta[i % 2]);
      if constexpr (kConfig.hides_rows()) {
        a = offset[i % 2] == -infinity() ? 0.0F : a;
        b = offset[i % 2] == -infinity() ? 0.0F : b;
      }
      pack_gradients<kConfig>(i, a, b, rdS, rdSlow);
    }
  }
  /// dS of the pass's first block.
  template <bool kMasked>
  __forceinline__ void first_keys(int first, int block) {
    worker.wait_stage();
    issue_scores();
    wgmma_wait<1>();
    pin(rS);
    query_probabilities<kMasked>(first, block);
    wgmma_wait<0>();
    pin(rGradS);
    worker.leave_second();
    query_gradients();
  }
  /// Entry: dS of the block before is ready, nothing is in flight. Exit: the same of `block`.
  template <bool kMasked>
  __forceinline__ void next_keys(int first, int block) {
    const u32 held = worker.stages.slot;
    worker.stages.advance();
    worker.wait_stage();
    issue_scores();
    issue_dq(held);
    wgmma_wait<2>();
    pin(rS);
    query_probabilities<kMasked>(first, block);
    wgmma_wait<0>();
    pin(rGradS);
    settle_dq();
    worker.leave_second();
    worker.leave_stage(held);
    query_gradients();
  }
  /// From left to right: blocks that a window cuts, those seen whole, those that an end or a
  /// diagonal cuts.
  __forceinline__ void sum_dq(int first, const BlockRange& own) {
    int block = own.begin;
    if (block >= own.full_end || block < own.full_begin) {
      first_keys<true>(first, block);
    } else {
      first_keys<false>(first, block);
    }
    worker.settle();
    ++block;
    if constexpr (kConfig.mask == Mask::both) {
#pragma unroll 1
      for (; block < own.full_begin; ++block) next_keys<true>(first, block);
    }
#pragma unroll 1
    for (; block < own.full_end; ++block) next_keys<false>(first, block);
#pragma unroll 1
    for (; block < own.end; ++block) next_keys<true>(first, block);
    issue_dq(worker.stages.slot);
    wgmma_wait<0>();
    settle_dq();
    worker.leave_stage(worker.stages.slot);
    worker.stages.advance();
  }
  /// delta = rowsum(P dP) - dLSE, of which the statistics have the last.
  __forceinline__ void sum_delta(int first, const BlockRange& own) {
    float sum[2] = {0.0F, 0.0F};
#pragma unroll 1
    for (int block = own.begin; block < own.end; ++block) {
      worker.wait_stage();
      issue_scores();
      wgmma_wait<0>();
      pin(rS);
      pin(rGradS);
      worker.leave_second();
      worker.leave_stage(worker.stages.slot);
      worker.stages.advance();
      query_probabilities<true>(first, block);
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        // Where a row sees no key P is 0 and dP anything.
        if (rS[i] != 0.0F) sum[i / 2 % 2] += rS[i] * rGradS[i];
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) delta[r] += quad_sum(sum[r]);
  }
  /// Over the blocks of a pass, of which the warpgroup's rows see its own.
  template <bool kDelta>
  __forceinline__ void sweep(int first, const BlockRange& all, const BlockRange& own) {
    const bool any = own.begin < own.end;
    int block = all.begin;
#pragma unroll 1
    for (; block < all.end && (!any || block < own.begin); ++block) worker.skip();
    if (!any) return;
    if constexpr (kDelta) {
      sum_delta(first, own);
    } else {
      sum_dq(first, own);
    }
#pragma unroll 1
    for (block = own.end; block < all.end; ++block) worker.skip();
  }
  __forceinline__ void run(int pass) {
    const int of_head = query_passes_of_head<kConfig>(worker.args, worker.job);
    const int g = pass / of_head, begin = pass % of_head * kBlock;
    const int first = begin + worker.warpgroup * kRows;
    const BlockRange all = key_range<kConfig>(worker.args, worker.job, begin, kBlock);
    const BlockRange own = key_range<kConfig>(worker.args, worker.job, first, kRows);
    worker.find_statistics(g);
    const u32 at = worker.offset_of(first) + 4 * (worker.warp * 16 + worker.lane / 4);
    // The second warpgroup's rows may begin behind the last that have statistics.
    const bool any = own.begin < own.end;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      offset[r] = any ? load_shared_f32(at + 32 * r) : 0.0F;
      delta[r] = any ? load_shared_f32(at + kDelta + 32 * r) : 0.0F;
    }
    rDq.clear();
    mbarrier_wait(worker.shared.kept_full(worker.kept.slot), worker.kept.parity);
    if constexpr (kConfig.refined) {
      sweep<true>(first, all, own);
      __syncwarp();
      if (any && worker.lane % 4 == 0) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
          store_shared_4(at + kDelta + 32 * r, static_cast<u32>(__float_as_int(delta[r])));
      }
    }
    sweep<false>(first, all, own);
    leave(g, first);
  }

  __forceinline__ void leave(int g, int first) {
    const u32 place = worker.shared.kept(worker.kept.slot, worker.warpgroup);
    worker.sync_warpgroup();  // all four warps are done with what lies there
    bwd_sm90::stage_rows<kElement>(rDq, worker.args.scale, place, worker.warp, worker.lane);
    fence_async_shared();
    worker.sync_warpgroup();
    if (worker.thread == 0 && first < queries_of<kConfig>(worker.args, worker.job)) {
      const int head = worker.job.head * worker.args.group + g;
      worker.template store<kD>(place, [&](u32 from, int column) {
        if constexpr (kPacked<kConfig>) {
          int at[4];
          query_row<kConfig>(at, worker.args, worker.job, head, first);
          tma_store_5d(&worker.args.dq, from, column, at);
        } else {
          tma_store(&worker.args.dq, from, column, head, first, worker.job.batch);
        }
      });
      bulk_commit();
    }
    worker.leave_kept();
  }
};

}  // namespace tilewise::bwd_short_sm90
