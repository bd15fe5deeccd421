/// bwd_sm80, bwd_dq_sm80: where operands lie, and the scale of scores that are not logits.
#pragma once

#include "cuda/kernels/bwd_sm80/args.h"
#include "cuda/tile/math.cuh"

namespace tilewise::bwd_sm80 {

/// A head's rows of a 16-bit operand, or of its planes, from `row` on.
__forceinline__ const unsigned short* operand_rows(const tile::View& view, int batch, int head,
                                                   int row) {
  return static_cast<const unsigned short*>(view.data) + batch * view.stride_b +
         head * view.stride_h + row * view.stride_s;
}

/// Raw scores to the log2 domain; `factor`: of the planes that they were computed from.
template <Config kConfig>
__forceinline__ float score_scale(const Args& args, float factor) {
  if constexpr (kConfig.form.scaled) return fminf(fmaxf(args.scale_log2 * factor, 1e-37F), 3e38F);
  return args.scale_log2;
}

}  // namespace tilewise::bwd_sm80
