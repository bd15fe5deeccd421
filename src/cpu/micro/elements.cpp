#include "cpu/micro/elements.h"

#include <bit>
#include <type_traits>

#include "cpu/micro/micro.h"
#include "cpu/textbook/row_passes.h"

namespace tilewise::cpu {
namespace {

float widen(float x) { return x; }
float widen(double x) { return static_cast<float>(x); }
float widen(Bfloat16 x) { return bfloat16_to_float(x.bits); }
float widen(Float16 x) { return float16_to_float(x.bits); }
float widen(std::uint8_t x) { return static_cast<float>(x); }
void narrow(float x, float& out) { out = x; }
void narrow(float x, double& out) { out = x; }
void narrow(float x, Bfloat16& out) { out.bits = float_to_bfloat16(x); }
void narrow(float x, Float16& out) { out.bits = float_to_float16(x); }

/// A contiguous row; half types by the widest registers there are.
template <class T>
void widen_row(const T* in, std::int64_t count, float* out) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    row_passes(best_isa()).widen_bfloat16(count, &in->bits, out);
  } else if constexpr (std::is_same_v<T, Float16>) {
    row_passes(best_isa()).widen_float16(count, &in->bits, out);
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i] = widen(in[i]);
  }
}

template <class T>
void narrow_row(const float* in, std::int64_t count, T* out) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    row_passes(best_isa()).narrow_bfloat16(count, in, &out->bits);
  } else if constexpr (std::is_same_v<T, Float16>) {
    row_passes(best_isa()).narrow_float16(count, in, &out->bits);
  } else {
    for (std::int64_t i = 0; i < count; ++i) narrow(in[i], out[i]);
  }
}

template <class T>
void load_as(const void* data, std::int64_t offset, std::int64_t stride, std::int64_t count,
             float* out) {
  const T* in = static_cast<const T*>(data) + offset;
  if (stride == 1) return widen_row(in, count, out);
  for (std::int64_t i = 0; i < count; ++i) out[i] = widen(in[i * stride]);
}

template <class T>
void store_as(void* data, std::int64_t offset, std::int64_t stride, std::int64_t count,
              const float* in) {
  T* out = static_cast<T*>(data) + offset;
  if (stride == 1) return narrow_row(in, count, out);
  for (std::int64_t i = 0; i < count; ++i) narrow(in[i], out[i * stride]);
}

}  // namespace

float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

float float16_to_float(std::uint16_t half) {
  // The exponent moves by multiplication with 2^112, which renormalises subnormals on the way.
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7FFFU) << 13;
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
  const std::uint32_t special = (half & 0x7C00U) == 0x7C00U ? 0x7F800000U : 0U;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}

std::uint16_t float_to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U)
    return static_cast<std::uint16_t>(sign | 0x7C00U);  // rounds past 65504
  if (magnitude < 0x38800000U) {
    // Subnormal half: adding 0.5 lines the bits up and rounds them as the FPU does.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

void load_row(const Tensor& t, std::int64_t offset, std::int64_t stride, std::int64_t count,
              float* out) {
  switch (t.dtype) {
    case DType::float32:
      return load_as<float>(t.data, offset, stride, count, out);
    case DType::float64:
      return load_as<double>(t.data, offset, stride, count, out);
    case DType::bfloat16:
      return load_as<Bfloat16>(t.data, offset, stride, count, out);
    case DType::float16:
      return load_as<Float16>(t.data, offset, stride, count, out);
    default:
      return load_as<std::uint8_t>(t.data, offset, stride, count, out);
  }
}

void store_row(const Tensor& t, std::int64_t offset, std::int64_t stride, std::int64_t count,
               const float* in) {
  switch (t.dtype) {
    case DType::float64:
      return store_as<double>(t.data, offset, stride, count, in);
    case DType::bfloat16:
      return store_as<Bfloat16>(t.data, offset, stride, count, in);
    case DType::float16:
      return store_as<Float16>(t.data, offset, stride, count, in);
    default:
      return store_as<float>(t.data, offset, stride, count, in);
  }
}

}  // namespace tilewise::cpu
