/// fwd_sm90: scores of a block whose P outgrew the maxima that were trusted.
#pragma once

#include "cuda/kernels/fwd_sm90/shared.cuh"
#include "cuda/tile/hopper/wgmma.cuh"
#include "cuda/tile/mma.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

/// (F1) The warp's own rows of S once more, by products of a warp: no other warp has to come.
/// `q`, `k`: the warpgroup's rows and the block in shared memory.
template <Config kConfig>
__forceinline__ void recompute(float (&rS)[kConfig.shape.block_n / 2], u32 q, u32 k, int warp,
                               int lane) {
  constexpr int kBlockN = kConfig.shape.block_n;
  // Worked out here alone: in registers of the loop it would spill.
  const int at_lane = opaque(lane);
  const int row = warp * 16 + at_lane % 16, key = at_lane % 8 + at_lane / 16 * 8;
  q += row * kPanelRowBytes;
  k += key * kPanelRowBytes;
#pragma unroll
  for (int i = 0; i < kBlockN / 2; ++i) rS[i] = 0.0F;
#pragma unroll 1
  for (int step = 0; step < kConfig.head_dim / 16; ++step) {
    const int chunk = step % 4 * 2;
    u32 a[4], b[4];
    load_matrix_x4(a, q + step / 4 * SharedPlan::kPanel + ((chunk + at_lane / 16) ^ row % 8) * 16);
#pragma unroll
    for (int n = 0; n < kBlockN / 16; ++n) {
      load_matrix_x4(b, k + (step / 4 * kBlockN + n * 16) * kPanelRowBytes +
                            ((chunk + at_lane / 8 % 2) ^ key % 8) * 16);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = 8 * n + 4 * half;
        Acc c = {rS[at], rS[at + 1], rS[at + 2], rS[at + 3]};
        mma<kConfig.element>(c, a, b[2 * half], b[2 * half + 1]);
#pragma unroll
        for (int e = 0; e < 4; ++e) rS[at + e] = c[e];
      }
    }
  }
}

}  // namespace tilewise::fwd_sm90
