/// bwd_diagonals: gradients of captured tensors of which i - j, the batch entry and the head decide
/// which element a pair reads, from the sums of dS by i - j. A block has a stretch of the diagonals
/// of one head. See bwd_sm80/captures.md.
#pragma once

#include "cuda/kernels/bwd_sm80/diagonals_args.h"
#include "cuda/kernels/bwd_sm80/moving_sum.cuh"
#include "cuda/tile/expression.cuh"
#include "cuda/tile/sequences.cuh"

namespace tilewise::bwd_diagonals {

using namespace tile;

template <Config kConfig, class AnyArgs>
__forceinline__ void kernel(const AnyArgs& any) {
  using Function = ScoreFunction<kConfig.expressions.score>;
  const Args& args = plain_args(any);
  const Captures& captures = *captures_of(any);
  const int bh = static_cast<int>(blockIdx.x) / args.blocks, b = bh / args.heads;
  const int block = static_cast<int>(blockIdx.x) % args.blocks;
  int seq_q = args.seq_q, seq_k = args.seq_k;
  if (args.queries.offsets != nullptr) {
    seq_q = min(sequence_at(args.queries, b).length, seq_q);
    seq_k = min(sequence_at(args.keys, b).length, seq_k);
  } else if (args.key_lengths != nullptr) {
    seq_k = args.key_lengths[b * args.key_lengths_b];
  }
  const Place place = {b, bh % args.heads, seq_q, seq_k};
  const typename Function::Uniform u = Function::uniform(place, captures);
  bwd_sm80::MovingSum<kConfig.exact> sums[Function::kTerms];
  const int first = (block * kThreads + static_cast<int>(threadIdx.x)) * kRun - args.last_key;
#pragma unroll 1
  for (int d = first; d < first + kRun; ++d) {
    // Others have no pairs, and their indices may lie outside of the tensors.
    if (d <= -seq_k || d >= seq_q) continue;
    const i64 at = static_cast<i64>(bh) * args.count + d + args.last_key;
    float g = 0.0F;
    if constexpr (kConfig.exact) {
      g = static_cast<float>(
          exact_sum(reinterpret_cast<const u64*>(args.sums) + at * ExactSum::kWords));
    } else {
      g = args.sums[at];
    }
    if (g == 0.0F) continue;
    const auto diagonal = Function::diagonal(place, u, d, static_cast<float>(d), captures);
    Function::terms(place, u, {}, {}, diagonal, 0, 0, 0.0F, captures, g, sums);
  }
#pragma unroll
  for (int n = 0; n < Function::kTerms; ++n) sums[n].finish(static_cast<int>(threadIdx.x) % 32);
}

}  // namespace tilewise::bwd_diagonals
