#include "reference/elements.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tilewise::reference {
namespace {

/// What decides the rounding of a 16-bit format.
struct Format {
  int digits;        ///< significant bits, the hidden one included
  int min_exponent;  ///< of the smallest normal number
  double max;
};
constexpr Format kBfloat16{8, -126, 0x1.FEp127};
constexpr Format kFloat16{11, -14, 65504.0};
constexpr Format kTf32{11, -126, 0x1.FFCp127};

double round_to_format(const Format& format, double value) {
  if (value == 0.0 || !std::isfinite(value)) return value;
  // The last bit that the format keeps is worth 2^unit; below the smallest normal number it stays
  // put.
  const int unit = std::max(std::ilogb(value), format.min_exponent) - (format.digits - 1);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  if (std::abs(rounded) <= format.max) return rounded;
  return std::copysign(std::numeric_limits<double>::infinity(), value);
}

double float16_to_double(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  double magnitude = 0.0;
  if (exponent == 31) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, -24);
  } else {
    magnitude = std::ldexp(1024 + mantissa, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// `value` is one that float16 holds exactly.
std::uint16_t double_to_float16(double value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(value);
  int rest = 0;
  if (std::isnan(value)) {
    rest = 0x7E00;
  } else if (std::isinf(value)) {
    rest = 0x7C00;
  } else if (magnitude < 0x1p-14) {
    rest = static_cast<int>(magnitude * 0x1p24);
  } else {
    const int exponent = std::ilogb(magnitude);
    rest = ((exponent + 14) << 10) + static_cast<int>(std::ldexp(magnitude, 10 - exponent));
  }
  return static_cast<std::uint16_t>(sign | rest);
}

template <class T>
T& element(const Tensor& tensor, std::int64_t offset) {
  return static_cast<T*>(tensor.data)[offset];
}

/// Calls f(offset) for every element in row-major order.
template <class F>
void for_each_element(const Tensor& tensor, F f) {
  const std::int64_t count = tensor.numel();
  for (std::int64_t index = 0; index < count; ++index) {
    std::int64_t rest = index;
    std::int64_t offset = 0;
    for (int axis = tensor.rank - 1; axis >= 0; --axis) {
      const auto a = static_cast<std::size_t>(axis);
      offset += rest % tensor.sizes[a] * tensor.strides[a];
      rest /= tensor.sizes[a];
    }
    f(offset);
  }
}

}  // namespace

double load(const Tensor& tensor, std::int64_t offset) {
  switch (tensor.dtype) {
    case DType::float64:
      return element<const double>(tensor, offset);
    case DType::float32:
      return element<const float>(tensor, offset);
    case DType::bfloat16:
      return std::bit_cast<float>(std::uint32_t{element<const std::uint16_t>(tensor, offset)}
                                  << 16);
    case DType::float16:
      return float16_to_double(element<const std::uint16_t>(tensor, offset));
    case DType::boolean:
    case DType::uint8:
      return element<const std::uint8_t>(tensor, offset);
    case DType::int32:
      return element<const std::int32_t>(tensor, offset);
    case DType::int64:
      return static_cast<double>(element<const std::int64_t>(tensor, offset));
  }
  return 0.0;
}

double round_to(DType dtype, double value) {
  switch (dtype) {
    case DType::float32:
      return static_cast<float>(value);
    case DType::bfloat16:
      return round_to_format(kBfloat16, value);
    case DType::float16:
      return round_to_format(kFloat16, value);
    default:
      return value;
  }
}

double round_to_tf32(double value) { return round_to_format(kTf32, value); }

void store(const Tensor& tensor, std::int64_t offset, double value) {
  const double rounded = round_to(tensor.dtype, value);
  switch (tensor.dtype) {
    case DType::float64:
      element<double>(tensor, offset) = rounded;
      break;
    case DType::float32:
      element<float>(tensor, offset) = static_cast<float>(rounded);
      break;
    case DType::bfloat16:
      element<std::uint16_t>(tensor, offset) = static_cast<std::uint16_t>(
          std::bit_cast<std::uint32_t>(static_cast<float>(rounded)) >> 16);
      break;
    case DType::float16:
      element<std::uint16_t>(tensor, offset) = double_to_float16(rounded);
      break;
    case DType::boolean:
    case DType::uint8:
      element<std::uint8_t>(tensor, offset) = static_cast<std::uint8_t>(rounded);
      break;
    case DType::int32:
      element<std::int32_t>(tensor, offset) = static_cast<std::int32_t>(rounded);
      break;
    case DType::int64:
      element<std::int64_t>(tensor, offset) = static_cast<std::int64_t>(rounded);
      break;
  }
}

std::vector<double> to_double(const Tensor& tensor) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(tensor.numel()));
  for_each_element(tensor, [&](std::int64_t offset) { values.push_back(load(tensor, offset)); });
  return values;
}

void from_double(const Tensor& tensor, const std::vector<double>& values) {
  std::size_t next = 0;
  for_each_element(tensor, [&](std::int64_t offset) { store(tensor, offset, values[next++]); });
}

}  // namespace tilewise::reference
