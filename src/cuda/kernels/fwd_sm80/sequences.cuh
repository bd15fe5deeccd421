/// fwd_sm80: from a tile of packed sequences to the arguments of the one that it is of.
#pragma once

#include "cuda/kernels/fwd_sm80/args.h"
#include "cuda/tile/order.cuh"
#include "cuda/tile/sequences.cuh"

namespace tilewise::fwd_sm80 {

using namespace tile;

/// From a head's row block of all sequences to one sequence, its tile and its arguments. False: the
/// block is none of a sequence's.
template <Config kConfig>
__forceinline__ bool enter_sequence(const RaggedArgs& ragged, Args& args, TileIndex& tile,
                                    int& seq_k) {
  const Sequence q = sequence_of<kConfig.shape.block_m>(ragged.queries, tile.block);
  tile.block -= first_block<kConfig.shape.block_m>(q);
  tile.bh += q.index * args.heads_q;
  if (tile.block < 0 || tile.block * kConfig.shape.block_m >= q.length) return false;
  // Rows behind the last sequence see nothing, sinks neither; slopes of each sequence have none.
  const bool behind = q.index == ragged.queries.count;
  Sequence k{q.index, 0, 0};
  if (!behind) {
    if constexpr (kConfig.keys == Keys::packed) {
      k = sequence_at(ragged.keys, q.index);
    } else {
      k.length = keys_of(args, q.index);
    }
  }
  if (behind) args.sinks = args.alibi = nullptr;
  args.seq_q = q.length;
  seq_k = k.length;
  move_rows(args.q, q, ragged.chunked_q);
  if constexpr (kConfig.keys == Keys::packed) {
    move_rows(args.k, k, ragged.chunked_k);
    move_rows(args.v, k, ragged.chunked_v);
  }
  if constexpr (kConfig.form.scaled) {
    move_blocks(args.q_scale, q, args.heads_q, args.q_scale_blocks);
    if constexpr (kConfig.keys == Keys::packed) {
      const int heads_k = args.heads_q / args.group;
      move_blocks(args.k_scale, k, heads_k, args.k_scale_blocks);
      move_blocks(args.v_scale, k, heads_k, args.k_scale_blocks);
    }
  }
  move_rows(args.o, q, kConfig.split || kConfig.form.scaled ? 4 : 2);
  if (args.lse != nullptr) args.lse += q.begin * args.lse_s;
  move_pairs(args.pairs, q);
  return true;
}

}  // namespace tilewise::fwd_sm80
