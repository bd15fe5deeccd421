/// fwd_sm80: warps that share rows bring together what they have seen of the keys.
#pragma once

#include "cuda/kernels/fwd_sm80/args.h"
#include "cuda/tile/math.cuh"
#include "cuda/tile/mma.cuh"
#include "cuda/tile/ptx/copy.cuh"

namespace tilewise::fwd_sm80 {

using namespace tile;

/// In the first of the warps of the same rows. `b`: Forward<kConfig>.
template <Config kConfig, class Block>
__forceinline__ void merge_warps(Block& b) {
  constexpr int kM = Block::kM, kRowWarps = Block::kRowWarps;
  constexpr int kColumns = kConfig.head_dim_v / 8;
  const auto part = [&](int index) {
    return b.shared + Block::kQBytes + static_cast<u32>(index * Block::kPartBytes + b.lane * 16);
  };
  const auto as_float = [](u32 bits) { return __int_as_float(static_cast<int>(bits)); };
  copy_async_wait<0>();
  __syncthreads();  // all warps are done with K and V
  if (b.key_warp() > 0) {
    u32 to = part(b.warp - kRowWarps);
#pragma unroll
    for (int m = 0; m < kM; ++m, to += 512) {
      store_shared_16(to, b.rows.m[2 * m], b.rows.m[2 * m + 1], b.rows.l[2 * m],
                      b.rows.l[2 * m + 1]);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const Acc& o = b.rO[m][n];
        store_shared_16(to += 512, o[0], o[1], o[2], o[3]);
      }
    }
  }
  __syncthreads();  // all parts are there
  if (b.key_warp() > 0) return;
#pragma unroll 1
  for (int other = 1; other < Block::kKeyWarps; ++other) {
    u32 from = part((other - 1) * kRowWarps + b.warp);
#pragma unroll
    for (int m = 0; m < kM; ++m, from += 512) {
      const Bytes16 row = load_shared_16(from);
      const float mine[2] = {b.rows.m[2 * m], b.rows.m[2 * m + 1]};
      const float theirs[2] = {as_float(row.x), as_float(row.y)};
      const float l[2] = {as_float(row.z), as_float(row.w)};
      float alpha[2], beta[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float top = fmaxf(mine[half], theirs[half]);
        // What saw nothing has no weight.
        alpha[half] = mine[half] == -infinity() ? 0.0F : exp2_approx(mine[half] - top);
        beta[half] = theirs[half] == -infinity() ? 0.0F : exp2_approx(theirs[half] - top);
        float& sum = b.rows.l[2 * m + half];
        sum = sum * alpha[half] + l[half] * beta[half];
        b.rows.m[2 * m + half] = top;
      }
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const Bytes16 o = load_shared_16(from += 512);
        const float words[4] = {as_float(o.x), as_float(o.y), as_float(o.z), as_float(o.w)};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          b.rO[m][n][e] = b.rO[m][n][e] * alpha[e / 2] + words[e] * beta[e / 2];
        }
      }
    }
  }
}

}  // namespace tilewise::fwd_sm80
