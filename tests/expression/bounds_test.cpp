#include "expression/bounds.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "expression/lower.h"

namespace tilewise::expression {
namespace {

/// T5's buckets: ranges do not tell that a branch is taken for small distances alone.
constexpr const char* kBuckets =
    "n = max(i - j, 0); far = 16 + int(log(float(max(n, 1))/16)/2.0794415*16); "
    "score + table[h, where(n < 16, n, min(far, 31))]";

std::optional<Outside> find(const char* formula, std::int64_t columns, std::int64_t length) {
  float element = 0.0F;
  const std::vector<Captured> captures{
      Captured("table", Tensor::contiguous(&element, DType::float32, {4, columns}))};
  const Expression score = Expression::parse(formula, captures);
  const Function function = function_of(score);
  return find_outside(*function.program, function.captures,
                      Domain{.batch = 1, .heads = 4, .queries = length, .keys = length});
}

TEST(FindOutside, WhatOneDomainShowsSaysNothingOfAnother) {
  for (int again = 0; again < 3; ++again) {
    EXPECT_FALSE(find(kBuckets, 32, 512));
    const auto narrow = find(kBuckets, 31, 512);
    ASSERT_TRUE(narrow);
    EXPECT_EQ(narrow->axis, 1);
    EXPECT_EQ(narrow->index, 31);
    // -63 to 63, of which a negative one counts from the end.
    constexpr const char* kDistance = "score + table[h, where(i < 9999, i - j, 0)]";
    EXPECT_FALSE(find(kDistance, 64, 64));
    EXPECT_TRUE(find(kDistance, 64, 65));
  }
}

/// A call asks every time: 4,000 evaluations of this formula took 0.8 ms.
TEST(FindOutside, IsQuickTheSecondTime) {
  EXPECT_FALSE(find(kBuckets, 32, 8192));
  const auto begin = std::chrono::steady_clock::now();
  for (int call = 0; call < 2000; ++call) EXPECT_FALSE(find(kBuckets, 32, 8192));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 1.0);
}

}  // namespace
}  // namespace tilewise::expression
