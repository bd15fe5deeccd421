/// bwd_sm90, bwd_dq_sm90: from a job to the sequence that it is of, whose lengths only the device
/// knows. One thread's work, the producer's.
#pragma once

#include "cuda/kernels/bwd_sm90/args.h"
#include "cuda/kernels/fwd_sm90/packed_sequence.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// Fills in the sequence and the lengths of a job or tile, which names the block of `rows` rows, of
/// keys (`by_keys`) or of queries, that all packed sequences have or that its batch entry has.
/// False: the block is none of the sequence's.
template <Lengths kLengths, class Piece>
__forceinline__ bool look_up(const DeviceLengths& of, Piece& piece, bool by_keys, int rows) {
  if constexpr (kLengths == Lengths::keys) {
    piece.seq_k = min(max(of.key_lengths[piece.batch * of.key_lengths_b], 0), of.k_rows);
    return true;
  } else {
    const Offsets& offsets = by_keys ? of.cu_k : of.cu_q;
    const int b = last_not_after(offsets, of.sequences, piece.block, rows);
    piece.batch = b;
    piece.block -= offset_at(offsets, b) / rows + b;
    // Neither sees the other: keys behind the last sequence, queries behind it.
    const bool behind = b == of.sequences;
    piece.q_begin = offset_at(of.cu_q, b);
    piece.k_begin = offset_at(of.cu_k, b);
    const int q_end = !behind ? offset_at(of.cu_q, b + 1) : by_keys ? piece.q_begin : of.q_rows;
    const int k_end = !behind ? offset_at(of.cu_k, b + 1) : by_keys ? of.k_rows : piece.k_begin;
    piece.seq_q = min(max(q_end - piece.q_begin, 0), of.q_rows);
    piece.seq_k = min(max(k_end - piece.k_begin, 0), of.k_rows);
    return piece.block >= 0 && piece.block * rows < (by_keys ? piece.seq_k : piece.seq_q);
  }
}

}  // namespace tilewise::bwd_sm90
