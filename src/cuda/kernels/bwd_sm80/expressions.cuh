/// bwd_sm80, bwd_dq_sm80: scores that the caller's function changes.
#pragma once

#include "cuda/kernels/bwd_sm80/args.h"
#include "cuda/tile/expression.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::bwd_sm80 {

using namespace tile;

/// (F1 to F3) Raw scores to what the score function gives, and G to its derivative by the raw
/// scores times the scale. `pairs`: of the same fragment, for the bias.
template <Config kConfig, bool kTransposed, int kM, int kN, class Pairs>
__forceinline__ void score_function(Acc (&S)[kM][kN], Acc (&G)[kM][kN],
                                    const ScoreModification& mod, const Pairs& pairs,
                                    const PairCorner& at, const Captures& captures, int lane) {
  constexpr bool kBias = kConfig.pairs.bias != BiasType::none;
  float natural = mod.scale;
  if constexpr (kConfig.modified) {
    differentiate_scores<kTransposed>(S, G, mod, at.query, at.key, at.seq_k - at.seq_q, lane);
    natural = kLn2;
  } else if constexpr (kBias) {
    multiply(S, mod.scale * kLog2e);
    natural = kLn2;
  }
  pairs.add_to(S, at);
  differentiate_score_function<kConfig.expressions.score, kTransposed, kBias, kConfig.modified>(
      S, G, natural, at, captures, lane);
}

}  // namespace tilewise::bwd_sm80
