#include "problem/shared_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace tilewise {
namespace {

/// Counts the tensor's elements by byte of `memory`.
std::vector<int> bytes_of(const Tensor& t, const std::vector<char>& memory) {
  std::vector<int> bytes(memory.size());
  std::int64_t count = 1;
  for (int axis = 0; axis < t.rank; ++axis) count *= t.sizes[static_cast<std::size_t>(axis)];
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t at = 0, left = n;
    for (auto axis = static_cast<std::size_t>(t.rank); axis-- > 0; left /= t.sizes[axis])
      at += left % t.sizes[axis] * t.strides[axis];
    const auto first = static_cast<const char*>(t.data) - memory.data() + at * dtype_bytes(t.dtype);
    for (std::int64_t b = 0; b < dtype_bytes(t.dtype); ++b)
      ++bytes[static_cast<std::size_t>(first + b)];
  }
  return bytes;
}

TEST(SharedMemory, IsExactForDrawnViews) {
  std::mt19937 random(7);
  std::vector<char> memory(8192);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<unsigned>(high - low + 1));
  };
  const auto view = [&] {
    Tensor t;
    t.dtype = std::vector{DType::uint8, DType::float16, DType::float32}[random() % 3];
    t.rank = static_cast<int>(draw(1, 4));
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(t.rank); ++axis) {
      t.sizes[axis] = draw(0, 12) == 0 ? 0 : draw(1, 4);
      t.strides[axis] = draw(-3, 9) * (random() % 2 == 0 ? 6 : 1);
    }
    t.data = memory.data() + memory.size() / 2 + draw(-40, 40);
    return t;
  };
  int shared = 0;
  for (int n = 0; n < 2000; ++n) {
    const Tensor a = view(), b = view();
    const std::vector<int> in_a = bytes_of(a, memory), in_b = bytes_of(b, memory);
    bool expected = false;
    for (std::size_t at = 0; at < in_a.size(); ++at) expected |= in_a[at] > 0 && in_b[at] > 0;
    ASSERT_EQ(share_memory(a, b), expected) << n << ": " << a.describe() << ", " << b.describe();
    ASSERT_EQ(share_memory(b, a), expected) << n;
    shared += expected ? 1 : 0;
  }
  EXPECT_GT(shared, 200);
  EXPECT_LT(shared, 1800);
}

TEST(SharedMemory, AStrideThatNeverStepsMayBeAnything) {
  float memory[2] = {};
  Tensor a = Tensor::contiguous(memory, DType::float32, {1, 1});
  a.strides = {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  EXPECT_TRUE(share_memory(a, Tensor::contiguous(memory, DType::float32, {2})));
  EXPECT_FALSE(share_memory(a, Tensor::contiguous(memory + 1, DType::float32, {1})));
}

/// Rows of 3 * 1024 elements in buffers of another pitch: no step of one is a step of the other.
TEST(SharedMemory, IsExactForLongViewsOfUnlikePitches) {
  std::vector<char> memory(1);
  const auto view = [&](std::int64_t column, std::int64_t pitch, std::int64_t width) {
    Tensor t{.data = memory.data() + 2 * column, .dtype = DType::bfloat16, .rank = 3};
    t.sizes = {65536, 8, width};
    t.strides = {pitch, 128, 1};
    return t;
  };
  EXPECT_FALSE(share_memory(view(0, 3072, 64), view(64, 5120, 64)));
  EXPECT_TRUE(share_memory(view(0, 3072, 65), view(64, 5120, 64)));
  EXPECT_TRUE(share_memory(view(0, 3072, 64), view(64, 5121, 64)));
}

}  // namespace
}  // namespace tilewise
