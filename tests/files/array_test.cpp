#include "cli/files/array.h"

#include <cmath>

#include "tests/files/files_testing.h"

namespace tilewise::files {
namespace {

TEST(Array, IsAligned) {
  for (const std::int64_t size : {1, 3, 1000}) {
    const Array array = make_array("x", DType::uint8, {size});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.bytes.data()) % 64, 0U);
  }
}

TEST(Array, CountsBytes) {
  EXPECT_EQ(array_bytes(DType::float32, std::vector<std::int64_t>{2, 3}), 24);
  EXPECT_EQ(array_bytes(DType::int64, std::vector<std::int64_t>{}), 8);
  EXPECT_EQ(array_bytes(DType::float32, std::vector<std::int64_t>{5, 0}), 0);
  const std::int64_t half = std::int64_t{1} << 32;
  EXPECT_EQ(array_bytes(DType::uint8, std::vector<std::int64_t>{half, half / 4}),
            half * (half / 4));
  EXPECT_EQ(array_bytes(DType::uint8, std::vector<std::int64_t>{half, half / 2}), std::nullopt);
  EXPECT_EQ(array_bytes(DType::uint8, std::vector<std::int64_t>{half, half / 2, 0}), std::nullopt);
  EXPECT_EQ(array_bytes(DType::float32, std::vector<std::int64_t>{-1}), std::nullopt);
  EXPECT_EQ(array_bytes(DType::uint8, std::vector<std::int64_t>(65, 1)), std::nullopt);
}

TEST(Array, RefusesImpossibleShapes) {
  EXPECT_TRUE(contains(file_error_of([] {
                         make_array("x", DType::float32, {2, -1});
                       }),
                       "x: invalid shape (2, -1)"));
  EXPECT_THROW(make_array("x", DType::uint8, {std::int64_t{1} << 62}), OutOfMemory);
}

TEST(Array, FindsTheFirstNan) {
  const float nan = std::nanf(""), inf = INFINITY;
  EXPECT_EQ(first_nan(array_of<float>(DType::float32, {4}, {1, -inf, inf, 0})), std::nullopt);
  EXPECT_EQ(first_nan(array_of<float>(DType::float32, {4}, {1, inf, -nan, nan})), 2);
  EXPECT_EQ(first_nan(array_of<double>(DType::float64, {3}, {1, HUGE_VAL, 2})), std::nullopt);
  EXPECT_EQ(first_nan(array_of<double>(DType::float64, {2}, {1, std::nan("")})), 1);
  // float16: 1, inf, -inf, the largest finite; then the NaN with the least fraction, and one with a
  // sign
  const std::vector<std::uint16_t> halves = {0x3c00, 0x7c00, 0xfc00, 0x7bff};
  EXPECT_FALSE(first_nan(array_of(DType::float16, {4}, halves)).has_value());
  EXPECT_TRUE(first_nan(array_of<std::uint16_t>(DType::float16, {1}, {0x7c01})).has_value());
  EXPECT_TRUE(first_nan(array_of<std::uint16_t>(DType::float16, {1}, {0xfe00})).has_value());
  const std::vector<std::uint16_t> brains = {0x3f80, 0x7f80, 0xff80, 0x7f7f, 0x7c01};
  EXPECT_FALSE(first_nan(array_of(DType::bfloat16, {5}, brains)).has_value());
  EXPECT_TRUE(first_nan(array_of<std::uint16_t>(DType::bfloat16, {1}, {0x7f81})).has_value());
  EXPECT_TRUE(first_nan(array_of<std::uint16_t>(DType::bfloat16, {1}, {0xffc0})).has_value());
}

TEST(Array, IntegersHaveNoNan) {
  EXPECT_FALSE(first_nan(array_of<std::int32_t>(DType::int32, {1}, {-1})).has_value());
  EXPECT_FALSE(first_nan(array_of<std::int64_t>(DType::int64, {1}, {-1})).has_value());
  EXPECT_FALSE(first_nan(array_of<std::uint8_t>(DType::uint8, {1}, {255})).has_value());
}

TEST(Array, NamesShapesAndElements) {
  EXPECT_EQ(shape_text(std::vector<std::int64_t>{}), "()");
  EXPECT_EQ(shape_text(std::vector<std::int64_t>{7}), "(7,)");
  EXPECT_EQ(shape_text(std::vector<std::int64_t>{1, 12, 206, 32}), "(1, 12, 206, 32)");
  const Array array = make_array("x", DType::uint8, {2, 3, 4});
  EXPECT_EQ(element_index(array, 0), (std::vector<std::int64_t>{0, 0, 0}));
  EXPECT_EQ(element_index(array, 23), (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(element_index(array, 12 + 4 + 2), (std::vector<std::int64_t>{1, 1, 2}));
}

}  // namespace
}  // namespace tilewise::files
