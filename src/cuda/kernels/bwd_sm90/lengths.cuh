/// bwd_sm90, bwd_dq_sm90: the lengths that a job or a tile goes by, the problem's or its own.
#pragma once

#include "cuda/tile/mask_args.h"

namespace tilewise::bwd_sm90 {

template <auto kConfig>
inline constexpr bool kPacked = kConfig.lengths == tile::Lengths::packed;

template <auto kConfig, class Args, class Piece>
__forceinline__ int queries_of(const Args& args, const Piece& piece) {
  return kPacked<kConfig> ? piece.seq_q : args.seq_q;
}
template <auto kConfig, class Args, class Piece>
__forceinline__ int keys_of(const Args& args, const Piece& piece) {
  return kConfig.ragged() ? piece.seq_k : args.seq_k;
}
/// The entry of the batch that whatever is counted or kept for (entry, head) goes by: packed
/// sequences are one.
template <auto kConfig, class Piece>
__forceinline__ int entry_of(const Piece& piece) {
  return kPacked<kConfig> ? 0 : piece.batch;
}

}  // namespace tilewise::bwd_sm90
