#include "cpu/textbook/row_passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/micro/elements.h"
#include "problem/philox.h"

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
    passes().scale(n, 0.5F, y.data(), y.data());
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
    passes().scale(n, -0.75F, y.data(), y.data());
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

TEST_P(RowPassesTest, EveryFloat16) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> values(halves.size());
  passes().widen_float16(65536, halves.data(), values.data());
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const float one = float16_to_float(halves[i]);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(one)) << i;
  }
}

TEST_P(RowPassesTest, HalfTypesOneByOne) {
  std::vector<float> x{0.0F,   -0.0F,    kInf,     -kInf,   kNaN,  65504.0F, 65519.9F,
                       1e-8F,  6.0e-8F,  -6e-5F,   6.1e-5F, 1e38F, 3.4e38F,  -1e-40F,
                       1.001F, 65520.0F, 2.98e-8F, 0.1F,    -3.3F};
  for (unsigned bits = 0x30000000U; bits < 0x48000000U; bits += 77773U) {
    x.push_back(std::bit_cast<float>(bits));
  }
  std::vector<std::uint16_t> brain(x.size());
  std::vector<std::uint16_t> half(x.size());
  const auto n = static_cast<std::int64_t>(x.size());
  passes().narrow_bfloat16(n, x.data(), brain.data());
  passes().narrow_float16(n, x.data(), half.data());
  std::vector<float> back(x.size());
  passes().widen_bfloat16(n, brain.data(), back.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(brain[i], float_to_bfloat16(x[i])) << x[i];
    ASSERT_EQ(half[i], float_to_float16(x[i])) << x[i];
    const float one = bfloat16_to_float(brain[i]);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::bit_cast<std::uint32_t>(one)) << x[i];
  }
}

TEST_P(RowPassesTest, DropKeepsWhatTheMaskKeeps) {
  for (const double p : {0.0, 0.3, 0.999, 1.0}) {
    const DropoutMask mask({.p = p, .seed = 0x123456789ABCDEFULL, .offset = 7});
    for (const std::int64_t first : {0, 1, 64, 4099}) {
      for (const std::int64_t n : kLengths) {
        std::vector<float> x = row(n, 11);
        if (n > 2) x[2] = kNaN;
        const std::vector<float> before = x;
        passes().drop(n,
                      {.key0 = mask.key()[0],
                       .key1 = mask.key()[1],
                       .offset = mask.offset(),
                       .head = 5,
                       .query = 99,
                       .first_key = first,
                       .threshold = mask.threshold(),
                       .scale = static_cast<float>(mask.scale())},
                      x.data());
        for (std::int64_t i = 0; i < n; ++i) {
          const auto at = static_cast<std::size_t>(i);
          if (!mask.keeps(5, 99, first + i)) {
            ASSERT_EQ(x[at], 0.0F) << "key " << first + i;
          } else if (!std::isnan(before[at])) {
            ASSERT_EQ(x[at], before[at] * static_cast<float>(mask.scale())) << "key " << first + i;
          }
        }
        ASSERT_EQ(x.back(), 777.0F);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, RowPassesTest, testing::Values(Isa::scalar, Isa::avx2, Isa::avx512),
                         [](const auto& isa) { return std::string(isa_name(isa.param)); });

}  // namespace
}  // namespace tilewise::cpu
