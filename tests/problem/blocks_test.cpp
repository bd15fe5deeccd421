#include "problem/blocks.h"

#include <gtest/gtest.h>

#include <limits>

namespace tilewise {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

TEST(Blocks, CoverTheLength) {
  EXPECT_EQ(ceil_div(0, 64), 0);
  EXPECT_EQ(ceil_div(1, 64), 1);
  EXPECT_EQ(ceil_div(64, 64), 1);
  EXPECT_EQ(ceil_div(65, 64), 2);
  EXPECT_EQ(round_up(0, 16), 0);
  EXPECT_EQ(round_up(33, 16), 48);
  EXPECT_EQ(round_up(48, 16), 48);
}

TEST(Blocks, OfAnySize) {
  EXPECT_EQ(ceil_div(2, kMost), 1);
  EXPECT_EQ(ceil_div(kMost, kMost), 1);
  EXPECT_EQ(ceil_div(kMost, 2), kMost / 2 + 1);
  EXPECT_EQ(round_up(1, kMost), kMost);
}

}  // namespace
}  // namespace tilewise
