/// Scalar arithmetic and conversions. One instruction per wrapper; sections are those of the PTX
/// ISA manual.
#pragma once

#include "cuda/tile/words.cuh"

namespace tilewise::tile {

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

/// 1/x to 1 ulp. PTX ISA, "rcp.approx.ftz.f32"
__forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The smaller; a NaN operand gives NaN, so that a visible NaN survives a clamp. 9.7.3.11 min
__forceinline__ float min_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/// The larger; a NaN operand gives NaN. 9.7.3.12 max
__forceinline__ float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/// The larger of each half. sm_90 and newer. 9.7.1.11 max
__forceinline__ u32 max_halves(u32 a, u32 b) {
  u32 y;
  asm("max.u16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
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

}  // namespace tilewise::tile
