#include "reference/elements.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

namespace tilewise::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::uint16_t stored(DType dtype, double value) {
  std::uint16_t bits = 0;
  store(Tensor::contiguous(&bits, dtype, {1}), 0, value);
  return bits;
}

double loaded(DType dtype, std::uint16_t bits) {
  return load(Tensor::contiguous(&bits, dtype, {1}), 0);
}

TEST(Elements, EveryBitPatternSurvives) {
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    for (int pattern = 0; pattern < 65536; ++pattern) {
      const auto bits = static_cast<std::uint16_t>(pattern);
      const double value = loaded(dtype, bits);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(loaded(dtype, stored(dtype, value)))) << pattern;
      } else {
        EXPECT_EQ(stored(dtype, value), bits) << dtype_name(dtype);
      }
    }
  }
}

TEST(Elements, MidpointsRoundToEvenAndNeighboursToTheNearest) {
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    const std::uint16_t infinity = dtype == DType::float16 ? 0x7C00 : 0x7F80;
    for (std::uint16_t bits = 0; bits + 1 < infinity; ++bits) {
      const auto above = static_cast<std::uint16_t>(bits + 1);
      const double middle = (loaded(dtype, bits) + loaded(dtype, above)) / 2;
      EXPECT_EQ(stored(dtype, middle), bits % 2 == 0 ? bits : above);
      EXPECT_EQ(stored(dtype, -middle), (bits % 2 == 0 ? bits : above) | 0x8000);
      // One step of double off the middle: rounding to float32 first would lose it.
      EXPECT_EQ(stored(dtype, std::nextafter(middle, 0.0)), bits);
      EXPECT_EQ(stored(dtype, std::nextafter(middle, kInfinity)), above);
    }
  }
}

TEST(Elements, KnownPatterns) {
  EXPECT_EQ(stored(DType::float16, 1.0), 0x3C00);
  EXPECT_EQ(stored(DType::float16, 65504.0), 0x7BFF);
  EXPECT_EQ(stored(DType::float16, 65520.0), 0x7C00);
  EXPECT_EQ(stored(DType::float16, 0x1p-24), 0x0001);
  EXPECT_EQ(stored(DType::float16, 0x1p-26), 0x0000);
  EXPECT_EQ(stored(DType::float16, -2.5), 0xC100);
  EXPECT_EQ(stored(DType::bfloat16, 1.0), 0x3F80);
  EXPECT_EQ(stored(DType::bfloat16, 133120.0), 0x4802);
  EXPECT_EQ(stored(DType::bfloat16, 1e39), 0x7F80);
  EXPECT_EQ(stored(DType::bfloat16, -0.0), 0x8000);
  EXPECT_EQ(round_to(DType::float32, 1e39), kInfinity);
  EXPECT_EQ(round_to(DType::float64, 0.1), 0.1);
}

TEST(Elements, RowMajorOrderWhateverTheStrides) {
  std::array<float, 6> memory{0, 1, 2, 3, 4, 5};
  Tensor t = Tensor::contiguous(memory.data(), DType::float32, {2, 3});
  t.sizes = {3, 2};
  t.strides = {1, 3};
  EXPECT_EQ(to_double(t), (std::vector<double>{0, 3, 1, 4, 2, 5}));
  from_double(t, {10, 11, 12, 13, 14, 15});
  EXPECT_EQ(memory, (std::array<float, 6>{10, 12, 14, 11, 13, 15}));
}

TEST(Elements, IntegersAndBooleans) {
  std::int64_t big = -(std::int64_t{1} << 40);
  EXPECT_EQ(load(Tensor::contiguous(&big, DType::int64, {1}), 0), -0x1p40);
  std::int32_t small = -7;
  EXPECT_EQ(load(Tensor::contiguous(&small, DType::int32, {1}), 0), -7.0);
  std::uint8_t flag = 1;
  EXPECT_EQ(load(Tensor::contiguous(&flag, DType::boolean, {1}), 0), 1.0);
}

}  // namespace
}  // namespace tilewise::reference
