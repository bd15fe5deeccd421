/// bwd_dq_sm80's refinement: what rounding took from lse2 and delta.
///
/// (B1) The sum of a row's probabilities as they come out with the rounded lse2 is not 1 when
/// |lse2| is large: its log2 is what lse2 lacks. Written as the first term of a second plane,
/// where operands have two.
/// (B2) delta is taken from the same P: where keys are large, what is left of sum_j dS_j = 0
/// after rounding P and O apart is multiplied by them. 16-bit rows see the rounding of O itself.
/// Under a bias sums count from the row's maximum, which a float32 LSE may be far from.
#pragma once

#include "cuda/kernels/bwd_sm80/query_tiles.cuh"

namespace tilewise::bwd_dq_sm80 {

using namespace tile;

template <Config kConfig>
struct Refinement {
  using Queries = QueryGradient<kConfig>;
  static constexpr int kM = Queries::kM, kN = Queries::kN;
  static constexpr bool kMoves = Queries::kMoves, kLogits = Queries::kLogits;
  /// Under a bias: logits of a row that are this far from lse2 are so because LSE was rounded.
  static constexpr float kFar = 16.0F;

  /// Of the thread's rows: the sums of P and of P dP, the product that those of a row count from
  /// beside few keys (that of the pair which has most of its row, so that a row with one key leaves
  /// nothing), and with kMoves the logit that P counts from.
  using Rows = float[2 * kM];

  const Queries& of;
  const Args& args = of.args;

  __forceinline__ void run(const BlockRange& range) const {
    of.load_queries();
    Rows sum = {}, weighted = {}, origin = {}, top;
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) top[r] = is_rounded(r) ? -infinity() : 0.0F;
    of.for_blocks(
        range, [](int) {},
        [&](int block, int, bool cut) { add_block(block, cut, sum, weighted, origin, top); });
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) finish_row(r, sum, weighted, origin, top);
  }

  __forceinline__ void add_block(int block, bool cut, Rows& sum, Rows& weighted, Rows& origin,
                                 Rows& top) const {
    __syncthreads();  // all warps are done with the K and V before
    const int key = block * Queries::kBlockN;
    of.load_keys(block, 0);
    of.pairs().load_async(of.corner(key));
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();  // K, V and the pairs have landed, for all threads
    const typename Queries::Pairs::Shown shown = of.pairs().shown(of.corner(key));
    if (!shown.some) return;
    const typename Queries::KeyScales scales = of.key_scales(key);
    Acc S[kM][kN], dP[kM][kN];
    of.products(S, dP, key, 0);
    const float scale = fminf(fmaxf(args.scale_log2 * (scales.k * of.q_scale), 1e-37F), 3e38F);
    if constexpr (kLogits) {
      Acc unused[kM][kN];
      of.logits(S, unused, scales.k * of.q_scale, key, shown, cut);
    }
    of.mask(S, key);
    if constexpr (kMoves) raise(top, S, sum, weighted);
    add_pairs(S, dP, scale, scales.v, sum, weighted, origin, top);
  }
  /// S, times `scale` where it is not logits yet, and dP of a block's pairs.
  __forceinline__ void add_pairs(const Acc (&S)[kM][kN], const Acc (&dP)[kM][kN], float scale,
                                 float v_scale, Rows& sum, Rows& weighted, Rows& origin,
                                 const Rows& top) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int r = 2 * m + e / 2;
          const float s = kMoves ? S[m][n][e] - fmaxf(top[r], kLowest) : S[m][n][e];
          const float p = exp2_approx(kLogits ? s : __fmaf_rn(s, scale, -of.lse2[r]));
          const float product = v_scale * of.do_scale * dP[m][n][e];
          if (of.seq_k <= Queries::kFewKeys && p > sum[r]) {
            weighted[r] += sum[r] * (origin[r] - product);
            origin[r] = product;
          }
          sum[r] += p;
          // Nothing comes through a hidden pair, a NaN of V neither.
          weighted[r] += p == 0.0F ? 0.0F : p * (product - origin[r]);
        }
      }
    }
  }

  __forceinline__ void finish_row(int r, Rows& sum, Rows& weighted, const Rows& origin,
                                  const Rows& top) const {
    const int lane = of.lane;
    const float sink = args.sinks == nullptr
                           ? -infinity()
                           : __fmaf_rn(args.sinks[of.head * args.sinks_h], kLog2e, -of.lse2[r]);
    float base2 = 0.0F;  // what the sums count from
    if constexpr (kMoves) {
      base2 = fmaxf(reach(quad_max(top[r]), sink), kLowest);
      const float factor = exp2_approx(top[r] - base2);
      sum[r] *= factor, weighted[r] *= factor;
    }
    const float most = quad_max(sum[r]), seen = quad_sum(sum[r]);
    // One of the four lanes, the first that has most.
    float first = sum[r] == most ? static_cast<float>(lane % 4) : 4.0F;
    first = -quad_max(-first);
    const float base = __shfl_sync(~0U, origin[r], lane / 4 * 4 + static_cast<int>(first));
    const float products = quad_sum(weighted[r] + sum[r] * (origin[r] - base));
    const float total = seen + (args.sinks == nullptr ? 0.0F : exp2_approx(sink - base2));
    const int i = of.warp_row() + 16 * (r / 2) + lane / 4 + 8 * (r % 2);
    // A row without keys, NaN, infinite logits: the sums say nothing.
    const bool says = total > 0x1p-20F && total < (kMoves ? 0x1p60F : 0x1p20F);
    if (lane % 4 != 0 || i >= args.seq_q || !says) return;
    if (kMoves && base2 != 0.0F) args.lse2[of.row_index(i)] = of.lse2[r] + base2;
    // A sink's gradient is a sum over rows: what rounding took from P of each shows.
    const bool shows = args.sinks != nullptr && args.lse2_low != nullptr;
    if (kConfig.form.scaled || shows || is_rounded(r)) {
      args.lse2_low[of.row_index(i)] = log2_approx(total);
    }
    const float d_lse =
        args.d_lse == nullptr
            ? 0.0F
            : args.d_lse[of.batch * args.d_lse_b + of.head * args.d_lse_h + i * args.d_lse_s];
    args.delta[of.row_index(i)] = products / total + base * (seen / total) - d_lse;
  }
  /// The row's LSE may lack its log l. Only such rows get a new lse2, and its low part with it.
  __forceinline__ bool is_rounded(int r) const {
    return kMoves && fabsf(of.lse2[r]) > kCoarseUnderBias;
  }
  /// What sums of a row count from once they meet `x`: 0, as without a bias, where that will do.
  static __forceinline__ float reach(float top, float x) {
    if (x == -infinity() || (top > -infinity() && x <= top + kFar)) return top;
    return fabsf(x) <= kFar ? 0.0F : x;
  }
  /// `top` follows the logits up, and the sums follow it.
  __forceinline__ void raise(Rows& top, const Acc (&S)[kM][kN], Rows& sum, Rows& weighted) const {
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) {
      float x = -infinity();
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        x = fmaxf(x, fmaxf(S[r / 2][n][2 * (r % 2)], S[r / 2][n][2 * (r % 2) + 1]));
      }
      const float next = reach(top[r], x);
      if (next == top[r]) continue;
      const float factor = exp2_approx(top[r] - next);
      sum[r] *= factor, weighted[r] *= factor;
      top[r] = next;
    }
  }
};

}  // namespace tilewise::bwd_dq_sm80
