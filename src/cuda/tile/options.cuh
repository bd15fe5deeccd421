/// Sinks and the bits of a bool mask in the kernels for Hopper.
#pragma once

#include "cuda/tile/expression.cuh"
#include "cuda/tile/options_args.h"

namespace tilewise::tile {

template <class Args>
__forceinline__ const Args& plain_args(const Optioned<Args>& any) {
  return any.args;
}
template <class Args>
__forceinline__ const Captures* captures_of(const Optioned<Args>& any) {
  return &any.captures;
}
template <class Args>
__forceinline__ const Options* options_of(const Args& /*args*/) {
  return nullptr;
}
template <class Args>
__forceinline__ const Options* options_of(const Optioned<Args>& any) {
  return &any.options;
}

/// The four words of a line and a block.
__forceinline__ const u32* mask_words(const MaskBits& mask, int batch, int head, int line,
                                      int block) {
  return mask.words + batch * mask.stride_b + head * mask.stride_h + line * mask.stride_line +
         block * mask.stride_block;
}

/// Words are looked at behind the wait for the products, whose first sums `S` are: looked at
/// before, as ptxas would, they hold up the issue of products until they have come.
template <int kScores>
__forceinline__ void settle_shown(u32 (&shown)[2], const float (&S)[kScores], u32 zero) {
#pragma unroll
  for (int r = 0; r < 2; ++r) shown[r] |= static_cast<u32>(__float_as_int(S[2 * r])) & zero;
}

}  // namespace tilewise::tile
