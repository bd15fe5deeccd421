/// score_strip: what a score function has of each distance i - j, for every batch entry and head,
/// so that kernels read it instead of working it out for each tile.
#pragma once

#include "cuda/kernels/rows/score_strip_args.h"
#include "cuda/tile/expression.cuh"
#include "cuda/tile/sequences.cuh"

namespace tilewise::score_strip {

using namespace tile;

template <Config kConfig>
__forceinline__ void kernel(const Expressed<Args>& expressed) {
  using Function = ScoreFunction<kConfig.expressions.score>;
  const Args& args = expressed.args;
  const int bh = static_cast<int>(blockIdx.x) / args.blocks;
  const int block = static_cast<int>(blockIdx.x) % args.blocks;
  const int at = block * kThreads + static_cast<int>(threadIdx.x), b = bh / args.strip.heads;
  if (at >= args.strip.count) return;
  int seq_q = args.seq_q, seq_k = args.seq_k;
  if (args.queries.offsets != nullptr) seq_q = min(sequence_at(args.queries, b).length, seq_q);
  if (args.keys.offsets != nullptr) {
    seq_k = min(sequence_at(args.keys, b).length, seq_k);
  } else if (args.key_lengths != nullptr) {
    seq_k = args.key_lengths[b * args.key_lengths_b];
  }
  const Place place = {b, bh % args.strip.heads, seq_q, seq_k};
  const typename Function::Uniform u = Function::uniform(place, expressed.captures);
  // No pair has a distance beyond: that of the last one is as good.
  const int d = max(min(at - args.strip.zero, seq_q - 1), min(1 - seq_k, 0));
  static_cast<typename Function::Diagonal*>(args.values)[bh * args.strip.count + at] =
      Function::diagonal(place, u, d, static_cast<float>(d), expressed.captures);
}

}  // namespace tilewise::score_strip
