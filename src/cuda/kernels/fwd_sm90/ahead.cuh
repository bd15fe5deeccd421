/// fwd_sm90: tiles of keys that are seen whole, where registers hold the scores of two of them:
/// those of the next tile are multiplied under this one's exponentials (Config::ahead).
#pragma once

#include "cuda/kernels/fwd_sm90/shared.cuh"
#include "cuda/tile/hopper/wgmma.cuh"
#include "cuda/tile/math.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

/// `C`: Consumer<kConfig>. P of the tile before waits for its V; so it is again at the end.
template <Config kConfig, class C>
struct AheadSteps {
  static constexpr int kCount = C::kScores;
  C& c;
  Ring<kConfig.stages> next_k;  ///< of the scores that were issued last
  float other[kCount];          ///< scores beside the consumer's own

  __forceinline__ explicit AheadSteps(C& consumer) : c(consumer), next_k(consumer.rK) {}

  /// (F1) S = Q K^T of the tile in next_k, issued.
  __forceinline__ void issue_scores(float (&to)[kCount]) const {
    mbarrier_wait(c.shared.k_full(static_cast<int>(next_k.slot)), next_k.parity);
    const u64 k = c.dK + next_k.slot * (C::kPlan.k_stage / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kConfig.head_dim / 16; ++i) {
      C::ScoreProduct::multiply_shared(
          to, c.dQ + (i / 4) * (SharedPlan::kPanel / 16) + (i % 4) * kStepColumns,
          k + (i / 4) * (kConfig.block_n * kPanelRowBytes / 16) + (i % 4) * kStepColumns, i != 0);
    }
    wgmma_commit();
  }

  /// (F8) P against the maxima so far, in place, and l follows; false where one of the warp outgrew
  /// them: then l stays, and S is lost.
  __forceinline__ bool exponentials(float (&s)[kCount]) {
    float base[2], sum[2][2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) base[r] = fabsf(c.m[r]) <= kHugeMaximum ? c.m[r] : not_a_number();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      s[i] = exp2_approx(__fmaf_rn(s[i], c.args.scale_log2, -base[i / 2 % 2]));
      sum[i / 2 % 2][i % 2] += s[i];
    }
    const float here[2] = {sum[0][0] + sum[0][1], sum[1][0] + sum[1][1]};
    const bool holds = here[0] <= kOutgrown<kConfig> && here[1] <= kOutgrown<kConfig>;
    if (__any_sync(~0U, !holds)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) c.l[r] += here[r];  // (F9)
    return true;
  }
  static __forceinline__ void swap(float (&a)[kCount], float (&b)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float x = a[i];
      a[i] = b[i];
      b[i] = x;
    }
  }

  /// From the finished scores `now` to P. kMore: scores of the next tile go to `next` meanwhile.
  /// kOwn: `now` is the consumer's own array.
  template <bool kMore, bool kOwn>
  __forceinline__ void step(float (&now)[kCount], float (&next)[kCount]) {
    wgmma_wait<0>();
    pin(now);
    c.wait_v();
    c.issue_values();
    if constexpr (kMore) {
      next_k.advance();
      issue_scores(next);
    }
    const bool holds = exponentials(now);
    if (c.lane == 0 && holds) mbarrier_arrive(c.shared.k_empty(static_cast<int>(c.rK.slot)));
    wgmma_wait<kMore ? 1 : 0>();  // O; the next scores are still being multiplied
    pin(c.rO);
    pin(c.rP);
    c.release_v();
    if (!holds) {
      wgmma_wait<0>();
      pin(next);
      if constexpr (!kOwn) swap(now, next);
      c.recompute_scores();
      c.template softmax<false, false>(c.args);
      c.scale_o();
      if constexpr (!kOwn) swap(now, next);
    }
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i)
      c.rP[i] = pack<kConfig.element>(now[2 * i], now[2 * i + 1]);
    c.rK.advance();
  }

  __forceinline__ void run(int tiles) {
    issue_scores(c.rS);
#pragma unroll 1
    for (; tiles > 2; tiles -= 2) {
      step<true, true>(c.rS, other);
      step<true, false>(other, c.rS);
    }
    if (tiles == 2) {
      step<true, true>(c.rS, other);
      step<false, false>(other, c.rS);
    } else {
      step<false, true>(c.rS, other);
    }
  }
};

}  // namespace tilewise::fwd_sm90
