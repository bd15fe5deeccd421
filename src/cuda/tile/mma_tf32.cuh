/// The tf32 product of a warp on the tensor cores (sm_80 class): kernels hold float32 operands as
/// 16-bit planes instead (mma.cuh), so that only measuring needs it.
#pragma once

#include "cuda/tile/mma.cuh"

namespace tilewise::tile {

/// c += a b, m16 x n8 x k8, operands are the upper 19 bits of floats. 9.7.14.5.14 mma.m16n8k8
__forceinline__ void mma_tf32(Acc& c, const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace tilewise::tile
