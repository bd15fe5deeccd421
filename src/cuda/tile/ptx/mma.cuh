/// Matrix products of a warp on the tensor cores (sm_80 class). One instruction per wrapper;
/// sections are those of the PTX ISA manual.
///
/// Fragments of m16n8k16, lane l, g = l / 4, t = l % 4:
///   A  a[0] (g, 2t..)  a[1] (g+8, 2t..)  a[2] (g, 2t+8..)  a[3] (g+8, 2t+8..)
///   B  b[0] (2t.., g)  b[1] (2t+8.., g)
///   C  c[0], c[1] (g, 2t..)  c[2], c[3] (g+8, 2t..)
/// so that two accumulator tiles side by side are, packed to 16 bits, one A fragment.
#pragma once

#include "cuda/tile/words.cuh"

namespace tilewise::tile {

using Acc = float[4];

/// c += a b, 16-bit elements, float32 sums. 9.7.14.5.14 mma.m16n8k16
template <Element kElement>
__forceinline__ void mma(Acc& c, const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (kElement == Element::bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// c += a b, m16 x n8 x k8, operands are the upper 19 bits of floats. 9.7.14.5.14 mma.m16n8k8
__forceinline__ void mma_tf32(Acc& c, const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace tilewise::tile
