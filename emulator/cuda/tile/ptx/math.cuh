/// The wrappers of src/cuda/tile/ptx/math.cuh, each with what its instruction does on the emulator.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda/tile/words.cuh"
#include "emulator.h"

namespace tilewise::tile {

__forceinline__ int opaque(int x) { return x; }
__forceinline__ u64 opaque(u64 x) { return x; }
__forceinline__ u32 after(u32 x, float& /*y*/) { return x; }
__forceinline__ u64 after(u64 x, float& /*y*/) { return x; }

__forceinline__ float exp2_approx(float x) { return std::exp2(x); }
__forceinline__ float log2_approx(float x) { return std::log2(x); }
__forceinline__ float reciprocal(float x) { return 1.0F / x; }
__forceinline__ float reciprocal_approx(float x) { return 1.0F / x; }
__forceinline__ float min_nan(float a, float b) {
  return a != a || b != b ? a + b : std::fmin(a, b);
}
__forceinline__ float max_nan(float a, float b) {
  return a != a || b != b ? a + b : std::fmax(a, b);
}
__forceinline__ u32 max_halves(u32 a, u32 b) {
  return std::max(a >> 16, b >> 16) << 16 | std::max(a & 0xffffU, b & 0xffffU);
}
__forceinline__ u32 bit_mask(u32 start, u32 width) {
  return static_cast<u32>(start > 31 ? 0 : ((1ULL << (width > 32 ? 32 : width)) - 1) << start);
}

template <Element kElement>
__forceinline__ u32 pack(float lo, float hi) {
  const auto one = [](float x) -> u32 {
    if constexpr (kElement == Element::bf16) {
      const u32 u = emulator::bits(x);
      return x != x ? 0x7fffU : (u + 0x7fffU + (u >> 16 & 1U)) >> 16;
    } else {
      const _Float16 half = static_cast<_Float16>(x);
      unsigned short u;
      std::memcpy(&u, &half, 2);
      return u;
    }
  };
  return one(lo) | one(hi) << 16;
}
template <Element kElement>
__forceinline__ float widen(u32 bits) {
  if constexpr (kElement == Element::bf16) return emulator::number(bits << 16);
  const unsigned short u = static_cast<unsigned short>(bits);
  _Float16 half;
  std::memcpy(&half, &u, 2);
  return static_cast<float>(half);
}
template <Element kElement>
__forceinline__ u32 min_nan_2(u32 a, u32 b) {
  const auto one = [](u32 x, u32 y) {
    const float a = widen<kElement>(x & 0xffffU), b = widen<kElement>(y & 0xffffU);
    return a != a ? x & 0xffffU : b != b || b < a ? y & 0xffffU : x & 0xffffU;
  };
  return one(a, b) | one(a >> 16, b >> 16) << 16;
}

}  // namespace tilewise::tile
