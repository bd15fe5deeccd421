#include "cpu/row_passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tilewise::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Lengths around every vector width and the four accumulators.
const std::vector<std::int64_t> kLengths{0,  1,  3,  4,  5,  7,  8,   9,   15,  16,  17,
                                         31, 32, 33, 63, 64, 65, 100, 127, 255, 256, 300};

/// x[i] in [-span, span], the same for the same seed; one more element behind, which must stay.
std::vector<float> row(std::int64_t n, unsigned seed, float span = 3.0F) {
  std::vector<float> x(static_cast<std::size_t>(n) + 1, 777.0F);
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    seed = seed * 1664525U + 1013904223U;
    x[i] = (static_cast<float>(seed >> 8) / 8388608.0F - 1.0F) * span;
  }
  return x;
}

class RowPassesTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > best_isa()) GTEST_SKIP() << "the CPU has no " << isa_name(GetParam());
  }
  const RowPasses& passes() const { return row_passes(GetParam()); }
};

TEST_P(RowPassesTest, Reductions) {
  for (const std::int64_t n : kLengths) {
    const std::vector<float> x = row(n, 1);
    const std::vector<float> y = row(n, 2);
    double sum = 0.0;
    double dot = 0.0;
    float high = -kInf;
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      sum += static_cast<double>(x[i]);
      dot += static_cast<double>(x[i]) * static_cast<double>(y[i]);
      high = std::max(high, x[i]);
    }
    EXPECT_EQ(passes().highest(n, x.data()), high) << n;
    EXPECT_NEAR(passes().sum(n, x.data()), sum, 1e-4) << n;
    EXPECT_NEAR(passes().dot_seen(n, x.data(), y.data()), dot, 1e-3) << n;
    EXPECT_TRUE(passes().all_finite(n, x.data())) << n;
  }
}

TEST_P(RowPassesTest, NonFiniteValuesAreSeenWhereverTheyStand) {
  for (const std::int64_t n : kLengths) {
    for (std::int64_t at = 0; at < n; ++at) {
      for (const float bad : {kNaN, kInf, -kInf}) {
        std::vector<float> x = row(n, 3);
        x[static_cast<std::size_t>(at)] = bad;
        EXPECT_FALSE(passes().all_finite(n, x.data())) << n << " " << at << " " << bad;
      }
    }
  }
}

TEST_P(RowPassesTest, TheMaximumLeavesNaNAside) {
  std::vector<float> x{kNaN, -2.0F, kNaN, 5.0F, kNaN};
  EXPECT_EQ(passes().highest(5, x.data()), 5.0F);
  const std::vector<float> hidden(40, -kInf);
  EXPECT_EQ(passes().highest(40, hidden.data()), -kInf);
}

TEST_P(RowPassesTest, MapsStayInsideTheRow) {
  for (const std::int64_t n : kLengths) {
    const auto count = static_cast<std::size_t>(n);
    const std::vector<float> x = row(n, 4);
    const std::vector<float> p = row(n, 5);
    std::vector<float> y = x;
    passes().scale(n, 0.5F, y.data());
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(y[i], x[i] * 0.5F);
    EXPECT_EQ(y[count], 777.0F);

    y = x;
    passes().score_gradient(n, p.data(), 0.25F, y.data());
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_NEAR(y[i], p[i] * (x[i] - 0.25F), 1e-5);
    }
    EXPECT_EQ(y[count], 777.0F);

    std::vector<float> z = x;
    passes().score_gradient_scaled(n, p.data(), 0.25F, -2.0F, z.data());
    for (std::size_t i = 0; i < count; ++i) EXPECT_NEAR(z[i], -2.0F * y[i], 1e-5);
    EXPECT_EQ(z[count], 777.0F);

    y = x;
    passes().add_scaled(n, 2.0F, p.data(), y.data());
    for (std::size_t i = 0; i < count; ++i) EXPECT_NEAR(y[i], x[i] + 2.0F * p[i], 1e-5);
    EXPECT_EQ(y[count], 777.0F);
  }
}

TEST_P(RowPassesTest, FusedPassesAgreeWithSingleOnes) {
  for (const std::int64_t n : kLengths) {
    const auto count = static_cast<std::size_t>(n);
    std::vector<float> x = row(n, 6, 40.0F);
    std::vector<float> y = x;
    const float high = passes().scale_highest(n, -0.75F, x.data());
    passes().scale(n, -0.75F, y.data());
    EXPECT_EQ(high, passes().highest(n, y.data())) << n;
    EXPECT_EQ(x, y) << n;
    if (n == 0) continue;
    std::vector<float> z = row(n, 7);
    const float sum = passes().exp_sum(n, high, x.data(), z.data());
    passes().exp(n, high, y.data());
    EXPECT_EQ(z, y) << n;
    EXPECT_EQ(z[count], 777.0F);
    EXPECT_NEAR(sum, passes().sum(n, y.data()), 1e-5F * sum) << n;
  }
}

TEST_P(RowPassesTest, ExpIsCloseAndExactWhereItMustBe) {
  std::vector<float> x{0.0F, -kInf, kNaN, -1.0F, -10.5F, -87.0F, -200.0F, 1.0F};
  std::vector<float> y = x;
  passes().exp(static_cast<std::int64_t>(y.size()), 0.0F, y.data());
  EXPECT_EQ(y[0], 1.0F);
  EXPECT_EQ(y[1], 0.0F);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[6], 0.0F);
  for (const std::size_t i : {3U, 4U, 5U, 7U}) {
    const double truth = std::exp(static_cast<double>(x[i]));
    EXPECT_NEAR(y[i], truth, 2.5e-7 * truth) << x[i];
  }
}

TEST_P(RowPassesTest, HiddenEntriesOfPDoNotEnter) {
  for (const std::int64_t n : {5, 16, 70}) {
    std::vector<float> p = row(n, 8);
    std::vector<float> dp = row(n, 9);
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); i += 2) {
      p[i] = 0.0F;
      dp[i] = i % 4 == 0 ? kNaN : kInf;
    }
    EXPECT_TRUE(std::isfinite(passes().dot_seen(n, p.data(), dp.data())));
    std::vector<float> scaled = dp;
    passes().score_gradient(n, p.data(), 0.5F, dp.data());
    passes().score_gradient_scaled(n, p.data(), 0.5F, 3.0F, scaled.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); i += 2) {
      EXPECT_EQ(dp[i], 0.0F);
      EXPECT_EQ(scaled[i], 0.0F);
    }
    EXPECT_TRUE(passes().all_finite(n, dp.data()));
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, RowPassesTest, testing::Values(Isa::scalar, Isa::avx2, Isa::avx512),
                         [](const auto& isa) { return std::string(isa_name(isa.param)); });

}  // namespace
}  // namespace tilewise::cpu
