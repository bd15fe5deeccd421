/// Rows of any float type to and from float32.
#pragma once

#include <cstdint>

#include "tilewise/tensor.h"

namespace tilewise::cpu {

float bfloat16_to_float(std::uint16_t bits);
/// Rounds to nearest even; NaN stays NaN.
std::uint16_t float_to_bfloat16(float value);
float float16_to_float(std::uint16_t bits);
/// Rounds to nearest even; overflow gives infinity; NaN stays NaN.
std::uint16_t float_to_float16(float value);

/// out[i] = t's element at offset + i * stride (elements), for i < count. Float types and bool.
void load_row(const Tensor& t, std::int64_t offset, std::int64_t stride, std::int64_t count,
              float* out);
/// The way back, rounded once.
void store_row(const Tensor& t, std::int64_t offset, std::int64_t stride, std::int64_t count,
               const float* in);

/// Offset of element (i0, i1, i2, 0) in elements.
inline std::int64_t offset_of(const Tensor& t, std::int64_t i0, std::int64_t i1, std::int64_t i2) {
  return i0 * t.strides[0] + i1 * t.strides[1] + i2 * t.strides[2];
}

}  // namespace tilewise::cpu
