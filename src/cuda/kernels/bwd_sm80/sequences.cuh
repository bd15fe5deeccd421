/// bwd_sm80, bwd_dq_sm80: from the arguments of packed sequences to those of one.
#pragma once

#include "cuda/kernels/bwd_sm80/args.h"
#include "cuda/tile/order.cuh"
#include "cuda/tile/sequences.cuh"

namespace tilewise::bwd_sm80 {

using namespace tile;

/// The arguments of a block: the kernel's own, or a copy that becomes one sequence's.
template <bool kPacked>
struct OwnArgs {
  const Args& args;
  __forceinline__ explicit OwnArgs(const Args& all) : args(all) {}
};
template <>
struct OwnArgs<true> {
  Args args;
  __forceinline__ explicit OwnArgs(const RaggedArgs& all) : args(all.args) {}
};

/// `q` and `k` are the rows of one sequence, of which one side may be empty.
template <Config kConfig>
__forceinline__ void enter_sequence(const RaggedArgs& ragged, Args& args, const Sequence& q,
                                    const Sequence& k) {
  constexpr int kGradientBytes = kConfig.form.scaled ? 4 : 2;
  args.seq_q = q.length;
  args.seq_k = k.length;
  move_rows(args.q, q, ragged.chunked_q);
  move_rows(args.k, k, ragged.chunked_k);
  move_rows(args.v, k, ragged.chunked_v);
  move_rows(args.d_o, q, ragged.chunked_o);
  const int heads_q = args.heads_q, heads_k = heads_q / args.group;
  if constexpr (kConfig.form.scaled) {
    move_blocks(args.q_scale, q, heads_q, args.q_scale_blocks);
    move_blocks(args.do_scale, q, heads_q, args.q_scale_blocks);
    move_blocks(args.k_scale, k, heads_k, args.k_scale_blocks);
    move_blocks(args.v_scale, k, heads_k, args.k_scale_blocks);
  }
  // 16-bit operands have it beside sinks and functions that shift rows.
  if (args.lse2_low != nullptr)
    move_blocks(args.lse2_low, q, heads_q, args.rows_q / kScaleRows, kScaleRows);
  move_blocks(args.lse2, q, heads_q, args.rows_q / kScaleRows, kScaleRows);
  move_blocks(args.delta, q, heads_q, args.rows_q / kScaleRows, kScaleRows);
  if constexpr (kConfig.output.with_dq) {
    move_blocks(args.dq_sum, q, heads_q, args.rows_q / kScaleRows, kScaleRows * kConfig.head_dim);
  }
  if (args.d_lse != nullptr) args.d_lse += q.begin * args.d_lse_s;
  move_rows(args.dq, q, kGradientBytes);
  move_rows(args.dk, k, kGradientBytes);
  move_rows(args.dv, k, kGradientBytes);
  move_pairs(args.pairs, q);
}

/// A tile of keys of all sequences: of one. False: it is none of a sequence's.
template <Config kConfig>
__forceinline__ bool enter_keys(const RaggedArgs& ragged, Args& args, TileIndex& tile) {
  const Sequence k = sequence_of<kConfig.shape.block_n>(ragged.keys, tile.block);
  tile.block -= first_block<kConfig.shape.block_n>(k);
  tile.bh += k.index * (args.heads_q / args.group);
  if (tile.block < 0 || tile.block * kConfig.shape.block_n >= k.length) return false;
  // Keys behind the last sequence are seen by none: their gradients are 0.
  const bool behind = k.index == ragged.keys.count;
  const Sequence q = behind ? Sequence{k.index, 0, 0} : sequence_at(ragged.queries, k.index);
  enter_sequence<kConfig>(ragged, args, q, k);
  return true;
}
/// The same of queries.
template <Config kConfig>
__forceinline__ bool enter_queries(const RaggedArgs& ragged, Args& args, TileIndex& tile) {
  const Sequence q = sequence_of<kConfig.shape.block_m>(ragged.queries, tile.block);
  tile.block -= first_block<kConfig.shape.block_m>(q);
  tile.bh += q.index * args.heads_q;
  if (tile.block < 0 || tile.block * kConfig.shape.block_m >= q.length) return false;
  const bool behind = q.index == ragged.queries.count;
  const Sequence k = behind ? Sequence{q.index, 0, 0} : sequence_at(ragged.keys, q.index);
  enter_sequence<kConfig>(ragged, args, q, k);
  return true;
}

}  // namespace tilewise::bwd_sm80
