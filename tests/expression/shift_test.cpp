#include "expression/shift.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "expression/lower.h"

namespace tilewise {
namespace {

using expression::Domain;
using expression::largest_shift;

constexpr Domain kDomain{.batch = 2, .heads = 4, .queries = 1000, .keys = 2000};

Expression parse(const char* text) {
  static std::vector<float> slopes(4, 0.5F), table(64, 0.5F);
  const std::vector<Captured> captures{
      Captured("slopes", Tensor::contiguous(slopes.data(), DType::float32, {4})),
      Captured("table", Tensor::contiguous(table.data(), DType::float32, {64}))};
  return Expression::parse(text, captures);
}

double of_pairs(const char* text) {
  const Expression given = parse(text);
  return largest_shift(*expression::lower(given).program(), kDomain);
}

double of_rows(const char* text, bool sees_diagonal, bool causal) {
  const Expression given = parse(text);
  const auto affine = expression::lower(given).affine();
  if (affine == nullptr) throw std::logic_error(text);
  return largest_shift(*affine, kDomain, sees_diagonal, causal);
}

TEST(LargestShift, OfEveryPair) {
  EXPECT_NEAR(of_pairs("score + 3"), 3.0, 1e-3);
  EXPECT_NEAR(of_pairs("20*tanh(score/20)"), 0.0, 1e-3);
  EXPECT_NEAR(of_pairs("score - 100.0*abs(i - j)*(i - j)"), 100.0 * 1999 * 1999, 1e5);
  EXPECT_NEAR(of_pairs("score + sum(8, 1000.0*float(h))"), 24000.0, 1.0);
  EXPECT_TRUE(std::isinf(of_pairs("score + table[clamp(i - j, 0, 63)]*i")));
}

TEST(LargestShift, OfRowsWhoseTermsAreAffine) {
  // Falls from the diagonal.
  EXPECT_EQ(of_rows("score - 1000.0*abs(i - j)", true, false), 0.0);
  EXPECT_NEAR(of_rows("score - 1000.0*abs(i - j + 9)", true, false), 9000.0, 1.0);
  EXPECT_GE(of_rows("score - 1000.0*abs(i - j)", false, false), 1999e3);
  EXPECT_GE(of_rows("score + 1000.0*abs(i - j)", true, false), 1999e3);
  EXPECT_EQ(of_rows("score + 1000.0*(j - i)", true, true), 0.0);
  EXPECT_GE(of_rows("score + 1000.0*(j - i)", true, false), 1999e3);
  // Moves whole rows.
  EXPECT_GE(of_rows("score + 1000.0*i", true, true), 999e3);
  EXPECT_GE(of_rows("score + 1000.0*j", true, true), 1999e3);
  EXPECT_NEAR(of_rows("score - exp2(float(h))*1000.0", true, true), 8000.0, 10.0);
  // What is captured: slopes are those of ALiBi, the rest has no bound.
  EXPECT_EQ(of_rows("score - slopes[h]*abs(i - j)", false, false), 0.0);
  EXPECT_TRUE(std::isinf(of_rows("score + slopes[h]", true, true)));
  EXPECT_TRUE(std::isinf(of_rows("score + slopes[h]*i", true, true)));
}

}  // namespace
}  // namespace tilewise
