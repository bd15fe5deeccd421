/// bwd_sm80: rows that see no key add nothing, whatever their dO holds. CONTRACT 3
///
/// Their P is 0, but 0 times NaN is NaN in (B3) dV += P^T dO. So their dO becomes zero where it
/// lies in shared memory. Such rows lie in blocks that a mask cuts, and nowhere else.
#pragma once

#include "cuda/kernels/bwd_sm80/args.h"
#include "cuda/tile/math.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::bwd_sm80 {
using namespace tile;

/// `lse2`: of the block's rows, in shared memory; `rows`: of them that exist. Both it and dO have
/// landed, for all threads.
/// NOTE: the thread's index is read anew. Kept through the loop, it spills others.
template <Config kConfig, class TileO>
__forceinline__ void hide_rows(const TileO& sO, u32 lse2, int rows) {
  const int thread = opaque(static_cast<int>(threadIdx.x));
  constexpr int kThreads = kConfig.shape.warps * 32, kChunks = kConfig.head_dim_v / 8;
  const auto sees_nothing = [&](int row) {
    return load_shared_f32(lse2 + 4 * static_cast<u32>(row)) == infinity();
  };
  static_assert(kConfig.shape.block_m <= kThreads);
  const bool hidden = thread < min(kConfig.shape.block_m, rows) && sees_nothing(thread);
  if (!__syncthreads_or(hidden)) return;
#pragma unroll 1
  for (int i = thread; i < kConfig.shape.block_m * kChunks; i += kThreads) {
    if (!sees_nothing(i / kChunks)) continue;
#pragma unroll
    for (int plane = 0; plane < kConfig.form.planes; ++plane) {
      const u32 at =
          sO.address(i / kChunks, i % kChunks) + static_cast<u32>(plane * TileO::kPlaneBytes);
      store_shared_16(at, 0.0F, 0.0F, 0.0F, 0.0F);
    }
  }
  __syncthreads();  // the zeros are there, for all threads
}

}  // namespace tilewise::bwd_sm80
