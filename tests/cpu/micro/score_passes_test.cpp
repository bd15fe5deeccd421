#include "cpu/micro/score_passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tilewise::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kBehind = 777.0F;  ///< one more element behind a row, which must stay

/// Lengths around every vector width.
const std::vector<std::int64_t> kLengths{0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100, 256};

std::vector<float> row(std::int64_t n, float span) {
  static std::mt19937 generator(5);
  std::uniform_real_distribution<float> uniform(-span, span);
  std::vector<float> x(static_cast<std::size_t>(n) + 1, kBehind);
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) x[i] = uniform(generator);
  return x;
}

class ScorePassesTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > best_isa()) GTEST_SKIP() << "the CPU has no " << isa_name(GetParam());
  }
  const ScorePasses& passes() const { return score_passes(GetParam()); }
  float cap(float x, float c) const {
    passes().cap(1, c, &x);
    return x;
  }
};

TEST_P(ScorePassesTest, CapIsTanhToAFewUlp) {
  double worst = 0.0;
  for (float x = 1e-30F; x < 30.0F; x *= 1.0003F) {
    for (const float signed_x : {x, -x}) {
      const double expected = std::tanh(double{signed_x});
      worst = std::max(worst, std::abs(double{cap(signed_x, 1.0F)} / expected - 1.0));
    }
  }
  EXPECT_LT(worst, 3.0 * std::numeric_limits<float>::epsilon());
}

TEST_P(ScorePassesTest, CapOfSpecialValues) {
  EXPECT_EQ(cap(kInf, 20.0F), 20.0F);
  EXPECT_EQ(cap(-kInf, 20.0F), -20.0F);
  EXPECT_TRUE(std::isnan(cap(kNaN, 20.0F)));
  EXPECT_EQ(cap(0.0F, 20.0F), 0.0F);
  EXPECT_TRUE(std::signbit(cap(-0.0F, 20.0F)));
  EXPECT_FALSE(std::signbit(cap(0.0F, 20.0F)));
  EXPECT_FLOAT_EQ(cap(3.0F, 3e38F), 3.0F) << "1 / c is not a normal number";
  EXPECT_EQ(cap(3.0F, 1e-40F), 1e-40F);
}

TEST_P(ScorePassesTest, CapAndItsGradient) {
  constexpr float kCap = 5.0F;
  for (const std::int64_t n : kLengths) {
    const std::vector<float> x = row(n, 20.0F);
    std::vector<float> capped = x;
    passes().cap(n, kCap, capped.data());
    std::vector<float> gradient = row(n, 1.0F);
    const std::vector<float> before = gradient;
    passes().cap_gradient(n, 1.0F / kCap, capped.data(), gradient.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      const double t = std::tanh(double{x[i]} / kCap);
      EXPECT_NEAR(capped[i], kCap * t, 2e-6) << n << " " << i;
      EXPECT_NEAR(gradient[i], before[i] * (1.0 - t * t), 1e-6) << n << " " << i;
    }
    EXPECT_EQ(capped.back(), kBehind);
    EXPECT_EQ(gradient.back(), kBehind);
  }
}

TEST_P(ScorePassesTest, AlibiAtAnyDistance) {
  constexpr float kSlope = 0.25F;
  for (const std::int64_t n : kLengths) {
    // Far past 2^24, where a float32 cannot count, and past 32 bits on either side.
    for (const std::int64_t distance :
         {std::int64_t{-300}, std::int64_t{7}, std::int64_t{120}, std::int64_t{1} << 25,
          (std::int64_t{1} << 30) + 5, std::int64_t{1} << 40, -(std::int64_t{1} << 40)}) {
      const std::vector<float> before = row(n, 3.0F);
      std::vector<float> s = before;
      passes().alibi(n, kSlope, distance, s.data());
      for (std::int64_t j = 0; j < n; ++j) {
        const auto i = static_cast<std::size_t>(j);
        const double far = std::abs(static_cast<double>(distance - j));
        EXPECT_NEAR(s[i], before[i] - kSlope * far, 1e-6 + far * 6e-8) << distance << " " << j;
      }
      EXPECT_EQ(s.back(), kBehind);
    }
  }
}

TEST_P(ScorePassesTest, BiasAndMasks) {
  for (const std::int64_t n : kLengths) {
    const std::vector<float> before = row(n, 3.0F);
    std::vector<float> bias = row(n, 2.0F);
    std::vector<std::uint8_t> visible(static_cast<std::size_t>(n) + 1, 0);
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      visible[i] = i % 3 == 0 ? 0 : static_cast<std::uint8_t>(1 << i % 8);
      if (i % 5 == 0) bias[i] = -kInf;
    }
    std::vector<float> sum = before;
    std::vector<float> hidden = before;
    std::vector<float> replaced = before;
    passes().add(n, bias.data(), sum.data());
    passes().hide(n, visible.data(), hidden.data());
    passes().replace_hidden(n, bias.data(), 9.0F, replaced.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      EXPECT_EQ(sum[i], before[i] + bias[i]) << n << " " << i;
      EXPECT_EQ(hidden[i], visible[i] != 0 ? before[i] : -kInf) << n << " " << i;
      EXPECT_EQ(replaced[i], i % 5 == 0 ? 9.0F : before[i]) << n << " " << i;
    }
    EXPECT_EQ(sum.back(), kBehind);
    EXPECT_EQ(hidden.back(), kBehind);
    EXPECT_EQ(replaced.back(), kBehind);
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, ScorePassesTest,
                         testing::Values(Isa::scalar, Isa::avx2, Isa::avx512),
                         [](const auto& set) { return std::string(isa_name(set.param)); });

}  // namespace
}  // namespace tilewise::cpu
