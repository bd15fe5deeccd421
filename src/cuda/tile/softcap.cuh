/// cap(x) = c tanh(x / c) for many scores at once.
#pragma once

#include "cuda/tile/math.cuh"

namespace tilewise::tile {

/// 1/x to 1 ulp. PTX ISA, "rcp.approx.ftz.f32"
__forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// tanh to a few ulp: the odd series below 0.1 (next term below 2^-26 of it), else 1 - 2 / (e^2x +
/// 1). The hardware's own tanh (2^-11) would show in LSE.
__forceinline__ float tanh_fast(float x) {
  const float x2 = x * x;
  const float series = __fmaf_rn(
      x * x2, __fmaf_rn(x2, __fmaf_rn(x2, -17.0F / 315.0F, 2.0F / 15.0F), -1.0F / 3.0F), x);
  const float t = __fmaf_rn(-2.0F, reciprocal_approx(exp2_approx(2.0F * kLog2e * x) + 1.0F), 1.0F);
  return x2 < 0.01F ? series : t;
}

}  // namespace tilewise::tile
