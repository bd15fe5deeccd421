/// bwd_sm90: the bias of a block, as the copy engine left it beside a stage of Q.
#pragma once

#include "cuda/kernels/bwd_sm90/worker.cuh"
#include "cuda/tile/math.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// Raw scores become logits where the bias is added.
template <Config kConfig>
inline constexpr bool kScalesWithBias = kConfig.options.bias() && !kConfig.logits.softcap &&
                                        !kConfig.logits.alibi;

/// Calls `add` with the number of each of the thread's scores and its bias.
/// Matrices of eight queries and eight keys, turned round on their way from shared memory: two of
/// the warp's 16 keys for eight queries, and two for the next eight.
template <Config kConfig, class Add>
__forceinline__ u32 for_each_bias(const Worker<kConfig>& worker, Add add) {
  constexpr bool kRows = kConfig.options.pairs.staged;
  constexpr SharedPlan kPlan{kConfig};
  constexpr Element kOf =
      kConfig.options.pairs.bias == BiasType::bf16 ? Element::bf16 : Element::fp16;
  const int row = kRows ? worker.lane % 8 + worker.lane / 16 * 8 : 0;
  const int chunk = worker.warp * 2 + worker.lane / 8 % 2;
  const u32 from = worker.shared.bias(worker.rQ.slot) + worker.warpgroup * kPlan.bias_panel +
                   row * kPanelRowBytes + (chunk ^ row % 8) * 16;
  u32 largest = 0;  // as unsigned numbers the most negative ones are the largest
#pragma unroll
  for (int j = 0; j < kConfig.shape.block_m / 16; ++j) {
    u32 words[4];
    load_matrix_trans_x4(words, from + (kRows ? j * 16 * kPanelRowBytes : 0));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      largest = max_halves(largest, words[i]);
      const int score = 8 * j + 4 * (i / 2) + 2 * (i % 2);
      add(score, widen<kOf>(words[i] & 0xffffU));
      add(score + 1, widen_high<kOf>(words[i]));
    }
  }
  return largest;
}

/// (F3) As far as modify() has not made them so, raw scores become logits in the log2 domain. The
/// product is rounded before it is added: see with_bias(). -inf replaces, and a product that
/// overflows is lifted: a finite bias is no mask. CONTRACT 3, 10
template <Config kConfig, int kScores>
__forceinline__ void add_bias(const Worker<kConfig>& worker, float (&rS)[kScores]) {
  const float factor = kScalesWithBias<kConfig> ? worker.args.scale_log2 : 1.0F;
  const u32 largest = for_each_bias<kConfig>(
      worker, [&](int i, float b) { rS[i] = __fmaf_rn(rS[i], factor, __fmul_rn(b, kLog2e)); });
  // -2^127, -inf
  constexpr u32 kFrom = kConfig.options.pairs.bias == BiasType::bf16 ? 0xff00U : 0xfc00U;
  if (!__any_sync(~0U, largest >> 16 >= kFrom || (largest & 0xffffU) >= kFrom)) return;
  for_each_bias<kConfig>(worker, [&](int i, float b) {
    rS[i] = b == -infinity() ? b : rS[i] == -infinity() ? kLowest : rS[i];
  });
}

}  // namespace tilewise::bwd_sm90
