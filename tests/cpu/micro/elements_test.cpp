#include "cpu/micro/elements.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tilewise::cpu {
namespace {

/// The value of a float16 by its definition.
double float16_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31)
    return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(Elements, EveryFloat16RoundTrips) {
  for (int bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const double value = float16_value(half);
    const float widened = float16_to_float(half);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(widened)) << bits;
      ASSERT_TRUE(std::isnan(float16_value(float_to_float16(widened)))) << bits;
    } else {
      ASSERT_EQ(double{widened}, value) << bits;
      ASSERT_EQ(float_to_float16(widened), half) << bits;
    }
  }
}

TEST(Elements, Float16RoundsToNearestEven) {
  std::mt19937 generator(4);
  std::uniform_real_distribution<float> exponent(-27.0F, 17.0F);
  for (int i = 0; i < 200000; ++i) {
    const float x = std::exp2(exponent(generator)) * ((i & 1) != 0 ? -1.0F : 1.0F);
    const std::uint16_t got = float_to_float16(x);
    const double error = std::abs(float16_value(got) - double{x});
    if (std::abs(x) >= 65520.0F) {
      ASSERT_TRUE(std::isinf(float16_value(got))) << x;
      continue;
    }
    for (const int step : {-1, 1}) {  // no neighbour is nearer; on a tie ours is even
      const double other = float16_value(static_cast<std::uint16_t>(got + step));
      if (!std::isfinite(other)) continue;
      ASSERT_LE(error, std::abs(other - double{x})) << x;
      const bool tie = error == std::abs(other - double{x});
      ASSERT_TRUE(!tie || (got & 1) == 0) << x;
    }
  }
}

TEST(Elements, Bfloat16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(float_to_bfloat16(1.0F), 0x3F80);
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x3F808000U)), 0x3F80);  // a tie goes to even
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x3F818000U)), 0x3F82);
  EXPECT_EQ(float_to_bfloat16(std::bit_cast<float>(0x3F808001U)), 0x3F81);
  EXPECT_EQ(float_to_bfloat16(std::numeric_limits<float>::infinity()), 0x7F80);
  EXPECT_EQ(float_to_bfloat16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(std::bit_cast<float>(0x7F800001U)))));
}

TEST(Elements, RowsOfEveryTypeAndStride) {
  const std::vector<float> values{1.0F, -2.5F, 0.0F, 1024.0F, 0.25F};
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    for (const std::int64_t stride : {1, 3, -2}) {
      std::vector<std::byte> memory(1024);
      const Tensor t = Tensor::contiguous(memory.data(), dtype, {64});
      store_row(t, 20, stride, 5, values.data());
      std::vector<float> back(5, NAN);
      load_row(t, 20, stride, 5, back.data());
      EXPECT_EQ(back, values) << dtype_name(dtype) << " stride " << stride;
    }
  }
}

}  // namespace
}  // namespace tilewise::cpu
