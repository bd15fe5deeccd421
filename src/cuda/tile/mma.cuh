/// Matrix products of a warp on the tensor cores (sm_80 class), of operands in planes.
#pragma once

#include "cuda/tile/math.cuh"
#include "cuda/tile/ptx/mma.cuh"

namespace tilewise::tile {

/// A fragment in planes: the value is plane 0 plus plane 1.
template <int kPlanes>
struct FragmentA {
  u32 r[kPlanes][4];
};
/// Two B fragments side by side in n: r[p][0..1] and r[p][2..3].
template <int kPlanes>
struct FragmentB {
  u32 r[kPlanes][4];
};

/// c += a b of the high planes, for B fragment `half` (0, 1).
template <Element kElement, int kPlanes>
__forceinline__ void mma_high(Acc& c, const FragmentA<kPlanes>& a, const FragmentB<kPlanes>& b,
                              int half) {
  mma<kElement>(c, a.r[0], b.r[0][2 * half], b.r[0][2 * half + 1]);
}
/// c += what one low plane adds. The product of both low planes is below float32 accuracy.
template <Element kElement>
__forceinline__ void mma_low(Acc& c, const FragmentA<2>& a, const FragmentB<2>& b, int half) {
  mma<kElement>(c, a.r[1], b.r[0][2 * half], b.r[0][2 * half + 1]);
  mma<kElement>(c, a.r[0], b.r[1][2 * half], b.r[1][2 * half + 1]);
}

/// Two accumulator tiles side by side as one A fragment.
template <Element kElement, int kPlanes>
__forceinline__ void pack_fragment(FragmentA<kPlanes>& a, const Acc& left, const Acc& right) {
  const float v[4][2] = {
      {left[0], left[1]}, {left[2], left[3]}, {right[0], right[1]}, {right[2], right[3]}};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a.r[0][i] = pack<kElement>(v[i][0], v[i][1]);
    if constexpr (kPlanes == 2) {
      a.r[1][i] = pack<kElement>(v[i][0] - widen<kElement>(a.r[0][i]),
                                 v[i][1] - widen_high<kElement>(a.r[0][i]));
    }
  }
}

template <int kM, int kN>
__forceinline__ void clear(Acc (&S)[kM][kN]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) S[m][n][e] = 0.0F;
    }
  }
}

template <int kM, int kN>
__forceinline__ void multiply(Acc (&S)[kM][kN], float factor) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) S[m][n][e] *= factor;
    }
  }
}
/// Zero where `like` is, whatever stood there.
template <int kM, int kN>
__forceinline__ void clear_where_zero(Acc (&S)[kM][kN], const Acc (&like)[kM][kN]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) S[m][n][e] = like[m][n][e] == 0.0F ? 0.0F : S[m][n][e];
    }
  }
}
template <int kM, int kN>
__forceinline__ void multiply_each(Acc (&S)[kM][kN], const Acc (&factors)[kM][kN]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) S[m][n][e] *= factors[m][n][e];
    }
  }
}

/// Packs a fragment as A operands.
template <Element kElement, int kPlanes, int kM, int kN>
__forceinline__ void pack_fragments(FragmentA<kPlanes> (&a)[kM][kN / 2], const Acc (&S)[kM][kN]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int k = 0; k < kN / 2; ++k) {
      pack_fragment<kElement>(a[m][k], S[m][2 * k], S[m][2 * k + 1]);
    }
  }
}

}  // namespace tilewise::tile
