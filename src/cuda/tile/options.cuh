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

/// The word of a quad's lane for a line and a block. All rows of a warp ask for it together.
__forceinline__ u32 mask_word(const MaskBits& mask, int batch, int head, int line, int block,
                              int lane) {
  const u32* at = mask.words + batch * mask.stride_b + head * mask.stride_h +
                  line * mask.stride_line + block * mask.stride_block + lane % 4;
  return __ldg(at);
}

}  // namespace tilewise::tile
