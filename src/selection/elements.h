/// Elements of tensors of any float type, and the keys that an entry of a batch has.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "selection/shape.h"

namespace tilewise::selection {

inline float from_half(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16, exponent = bits >> 10 & 0x1fU;
  const std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0) {
    const float x = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -x : x;
  }
  const std::uint32_t high = exponent == 31 ? 0xffU : exponent + 112;
  return std::bit_cast<float>(sign | high << 23 | fraction << 13);
}

inline float element(const Tensor& t, std::int64_t at) {
  switch (t.dtype) {
    case DType::bfloat16:
      return std::bit_cast<float>(std::uint32_t{static_cast<const std::uint16_t*>(t.data)[at]}
                                  << 16);
    case DType::float16:
      return from_half(static_cast<const std::uint16_t*>(t.data)[at]);
    case DType::float64:
      return static_cast<float>(static_cast<const double*>(t.data)[at]);
    default:
      return static_cast<const float*>(t.data)[at];
  }
}

inline std::int64_t keys_of(const Shape& s, const Tensor& key_lengths, std::int64_t b) {
  if (!key_lengths.defined()) return s.seq_k;
  const auto* lengths = static_cast<const std::int32_t*>(key_lengths.data);
  return std::clamp<std::int64_t>(lengths[b * key_lengths.strides[0]], 0, s.seq_k);
}

}  // namespace tilewise::selection
