/// bwd_sm90: dropout's bits of a block of queries. NOTE: functions beside the scores, as those of
/// fwd_sm90/options.cuh.
#pragma once

#include "cuda/kernels/bwd_sm90/scores.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// b * Hq + h of a head of the whole batch: packed sequences are one entry of it.
template <Config kConfig>
__forceinline__ int dropout_head(const Worker<kConfig>& worker, int bh) {
  const int head = bh - entry_of<kConfig>(worker.job) * worker.args.heads_q;
  return worker.job.batch * worker.args.heads_q + head;
}

/// Makes the bits of a block of a head (of the whole batch).
template <Config kConfig>
__forceinline__ void take_dropout(Scores<kConfig>& s, int bh, int block) {
  if constexpr (kConfig.options.dropout) {
    constexpr int kM = kConfig.shape.block_m;
    constexpr int kAbreast = kConfig.head_dim + kConfig.head_dim_v <= 128 ? 4 : 2;
    const KeptPairs<true, true, 1, kM / 8, kAbreast, false, Scores<kConfig>::kDropsAhead> made(
        s.options->dropout, dropout_head<kConfig>(s.worker, bh), s.key_row() - s.worker.lane / 4,
        block * kM, s.worker.lane);
#pragma unroll
    for (int i = 0; i < kM / 64; ++i) s.kept[i] = made.bits[i];
  }
}

}  // namespace tilewise::bwd_sm90
