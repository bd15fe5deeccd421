#include "plan/significant.h"

#include <gtest/gtest.h>

namespace tilewise {
namespace {

TEST(SignificantTest, NumbersHaveNoExponent) {
  EXPECT_EQ(significant(4653.2, 3), "4653");
  EXPECT_EQ(significant(0.04478, 3), "0.0448");
  EXPECT_EQ(significant(0.0000213, 3), "0.0000213");
  EXPECT_EQ(significant(-12.345, 3), "-12.3");
}

TEST(SignificantTest, ZerosAtTheEndAreLeftOut) {
  EXPECT_EQ(significant(0.0, 3), "0");
  EXPECT_EQ(significant(63.0, 4), "63");
  EXPECT_EQ(significant(0.999999, 3), "1");
  EXPECT_EQ(significant(1200.0, 3), "1200");
}

}  // namespace
}  // namespace tilewise
