/// cap(x) = c tanh(x / c) for many scores at once.
#pragma once

#include "cuda/tile/math.cuh"

namespace tilewise::tile {

/// tanh to a few ulp: the odd series below 0.1 (next term below 2^-26 of it), else 1 - 2 / (e^2x +
/// 1). The hardware's own tanh (2^-11) would show in LSE.
__forceinline__ float tanh_fast(float x) {
  const float x2 = x * x;
  const float series = __fmaf_rn(
      x * x2, __fmaf_rn(x2, __fmaf_rn(x2, -17.0F / 315.0F, 2.0F / 15.0F), -1.0F / 3.0F), x);
  const float t = __fmaf_rn(-2.0F, reciprocal_approx(exp2_approx(2.0F * kLog2e * x) + 1.0F), 1.0F);
  return x2 < 0.01F ? series : t;
}

/// c tanh(x / c) as c - 2c / (e^(2x/c) + 1): off by less than 2^-21 c, near 0 too. `slope` is 2
/// log2 e / c.
__forceinline__ float cap_wide(float x, float slope, float c) {
  return __fmaf_rn(-2.0F * c, reciprocal_approx(exp2_approx(slope * x) + 1.0F), c);
}

/// f c tanh(x / c) / x for |x| <= c / 4 and x2 = x^2, off by at most 5e-7 of itself: f + f1 x2 + f2
/// x2^2, with f1 = f SoftcapSeries::k1 / c^2, f2 = f SoftcapSeries::k2 / c^4 (tile/types.h).
__forceinline__ float cap_narrow(float x2, float f, float f1, float f2) {
  return __fmaf_rn(x2, __fmaf_rn(x2, f2, f1), f);
}

}  // namespace tilewise::tile
