/// Scalar arithmetic and conversions. One instruction per wrapper; sections are those of the PTX
/// ISA manual.
#pragma once

#include "cuda/tile/copy.cuh"

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

/// x, made where the compiler cannot see that it is x: what follows from it is computed there,
/// not ahead of a loop and kept in registers.
__forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
__forceinline__ u64 opaque(u64 x) {
  asm volatile("" : "+l"(x));
  return x;
}

/// x, made after y is there: what follows from it is not computed ahead.
__forceinline__ u32 after(u32 x, float& y) {
  asm volatile("" : "+r"(x), "+f"(y));
  return x;
}
__forceinline__ u64 after(u64 x, float& y) {
  asm volatile("" : "+l"(x), "+f"(y));
  return x;
}

/// 2^x. 9.7.3.21 ex2
__forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// log2(x). 9.7.3.20 lg2
__forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1/x. 9.7.3.14 rcp
__forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.rn.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The smaller; a NaN operand gives NaN, so that a visible NaN survives a clamp. 9.7.3.11 min
__forceinline__ float min_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/// The larger of each half. sm_90 and newer. 9.7.1.11 max
__forceinline__ u32 max_halves(u32 a, u32 b) {
  u32 y;
  asm("max.u16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}

/// The larger; a NaN operand gives NaN. 9.7.3.12 max
__forceinline__ float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/// `width` ones from bit `start` on; both are clamped to 0 .. 32. "bmsk", .clamp
__forceinline__ u32 bit_mask(u32 start, u32 width) {
  u32 y;
  asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(y) : "r"(start), "r"(width));
  return y;
}

/// Two floats to two 16-bit elements, round to nearest even; `lo` in the lower half. 9.7.9.22 cvt
template <Element kElement>
__forceinline__ u32 pack(float lo, float hi) {
  u32 r;
  if constexpr (kElement == Element::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  }
  return r;
}

/// The element in the low half of `bits` as a float. 9.7.9.22 cvt
template <Element kElement>
__forceinline__ float widen(u32 bits) {
  if constexpr (kElement == Element::bf16) {
    return __int_as_float(static_cast<int>(bits << 16));
  } else {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(static_cast<unsigned short>(bits)));
    return y;
  }
}
template <Element kElement>
__forceinline__ float widen_high(u32 bits) {
  if constexpr (kElement == Element::bf16) {
    return __int_as_float(static_cast<int>(bits & 0xffff0000U));
  } else {
    return widen<kElement>(bits >> 16);
  }
}

/// The smaller of two elements each; a NaN operand gives NaN. 9.7.4.7 min (half precision)
template <Element kElement>
__forceinline__ u32 min_nan_2(u32 a, u32 b) {
  u32 r;
  if constexpr (kElement == Element::bf16) {
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  } else {
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  }
  return r;
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
