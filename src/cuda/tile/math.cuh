/// Scalar arithmetic and conversions.
#pragma once

#include "cuda/tile/ptx/copy.cuh"
#include "cuda/tile/ptx/math.cuh"

namespace tilewise::tile {

inline constexpr float kLog2e = 1.4426950408889634F;
inline constexpr float kLn2 = 0.69314718055994531F;
inline constexpr float kLowest = -3.4028235e38F;  ///< the least finite float
/// LSE of a row whose logits all lie below the numbers of the log2 domain: the least finite number
/// of the bias's type, which put them there.
constexpr float least_bias(BiasType type) {
  return type == BiasType::bf16 ? -0x1.fep127F : kLowest;
}

__forceinline__ float infinity() { return __int_as_float(0x7f800000); }
__forceinline__ float not_a_number() { return __int_as_float(0x7fffffff); }

template <Element kElement>
__forceinline__ float widen_high(u32 bits) {
  if constexpr (kElement == Element::bf16) {
    return __int_as_float(static_cast<int>(bits & 0xffff0000U));
  } else {
    return widen<kElement>(bits >> 16);
  }
}

/// 1.0 twice.
template <Element kElement>
inline constexpr u32 kOnes = kElement == Element::bf16 ? 0x3f803f80U : 0x3c003c00U;

/// tanh to float32 accuracy: the odd series below 0.1, else 1 - 2 / (e^2x + 1).
__forceinline__ float tanh_exact(float x) {
  const float x2 = x * x;
  const float series =
      x * (1.0F + x2 * (-1.0F / 3.0F + x2 * (2.0F / 15.0F + x2 * (-17.0F / 315.0F))));
  const float a = fabsf(x);
  const float t = 1.0F - 2.0F * reciprocal(exp2_approx(2.0F * kLog2e * a) + 1.0F);
  return a < 0.1F ? series : copysignf(t, x);
}

/// Largest and sum over the four lanes that share a row of an accumulator.
__forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0U, x, 2));
}
__forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0U, x, 1);
  return x + __shfl_xor_sync(~0U, x, 2);
}
/// Largest over a warp.
__forceinline__ float warp_max(float x) {
  for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(~0U, x, lane));
  return x;
}

/// 2^e with `x` in [2^e, 2^(e+1)), e clipped to [-100, 100]; 1 for 0.
__forceinline__ float power_below(float x) {
  if (!(x > 0.0F)) return 1.0F;
  const int e = min(max((__float_as_int(x) >> 23) - 127, -100), 100);
  return __int_as_float((e + 127) << 23);
}
/// 2^-e of a 2^e with |e| <= 126.
__forceinline__ float power_inverse(float p) {
  return __int_as_float((254 << 23) - __float_as_int(p));
}

}  // namespace tilewise::tile
