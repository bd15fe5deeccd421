#include "cpu/micro/micro.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

#include "cpu/micro/elements.h"

namespace tilewise::cpu {
namespace {

class MicroKernels : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > best_isa()) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
  }
  const Micro& m() const { return micro(GetParam()); }
};

std::vector<float> random_floats(std::size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& value : x) value = normal(generator);
  return x;
}

TEST_P(MicroKernels, GemmOfEveryTail) {
  for (int rows = 1; rows <= 13; ++rows) {
    for (int vectors = 1; vectors <= 6; ++vectors) {
      for (const int k : {1, 7, 33}) {
        for (const bool transposed : {false, true}) {
          const int cols = vectors * m().lanes;
          const auto a = random_floats(static_cast<std::size_t>(rows * k), 1);
          const auto b = random_floats(static_cast<std::size_t>(k * cols), 2);
          const auto before = random_floats(static_cast<std::size_t>(rows * cols), 3);
          const int a_row = transposed ? 1 : k;
          const int a_col = transposed ? rows : 1;
          auto c = before;
          m().gemm(rows, cols, k, a.data(), a_row, a_col, b.data(), cols, c.data(), cols, true);
          auto fresh = std::vector<float>(c.size(), NAN);
          m().gemm(rows, cols, k, a.data(), a_row, a_col, b.data(), cols, fresh.data(), cols,
                   false);
          for (int r = 0; r < rows; ++r) {
            for (int j = 0; j < cols; ++j) {
              double sum = 0.0;
              for (int i = 0; i < k; ++i) {
                sum += double{a[static_cast<std::size_t>(r * a_row + i * a_col)]} *
                       b[static_cast<std::size_t>(i * cols + j)];
              }
              const auto at = static_cast<std::size_t>(r * cols + j);
              ASSERT_NEAR(fresh[at], sum, 2e-5) << rows << "x" << cols << " k " << k;
              ASSERT_NEAR(c[at], sum + before[at], 2e-5) << rows << "x" << cols << " k " << k;
            }
          }
        }
      }
    }
  }
}

template <class T>
std::vector<std::uint16_t> narrowed(const std::vector<float>& x, T narrow) {
  std::vector<std::uint16_t> out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = narrow(x[i]);
  return out;
}

TEST_P(MicroKernels, StreamedProductsOfEveryStorageType) {
  const int keys = 9;
  for (int rows = 1; rows <= 7; ++rows) {
    for (const int vectors : {1, 3, 8, 9}) {
      const int dim = vectors * m().lanes;
      const auto a = random_floats(static_cast<std::size_t>(rows * dim), 1);
      const auto p = random_floats(static_cast<std::size_t>(rows * keys), 2);
      const auto b = random_floats(static_cast<std::size_t>(keys * dim), 3);
      const auto bfloat16 = narrowed(b, float_to_bfloat16);
      const auto float16 = narrowed(b, float_to_float16);
      const void* stored[] = {b.data(), bfloat16.data(), float16.data()};
      for (int storage = 0; storage < 3; ++storage) {
        const auto value = [&](int at) {
          const auto i = static_cast<std::size_t>(at);
          return double{storage == 0   ? b[i]
                        : storage == 1 ? bfloat16_to_float(bfloat16[i])
                                       : float16_to_float(float16[i])};
        };
        std::vector<float> s(static_cast<std::size_t>(rows * keys), NAN);
        m().row_products[storage](rows, keys, dim, a.data(), dim, stored[storage], dim, s.data(),
                                  keys);
        std::vector<float> o(static_cast<std::size_t>(rows * dim), 1.0F);
        m().add_weighted_rows[storage](rows, dim, keys, p.data(), keys, stored[storage], dim,
                                       o.data(), dim);
        // The same rows in another order, which a list undoes: other sums of the same terms.
        std::vector<std::int64_t> at(keys);
        for (int j = 0; j < keys; ++j) at[static_cast<std::size_t>(j)] = (4 * j + 2) % keys * dim;
        std::vector<float> listed_p(p.size()), listed_s(s.size(), NAN);
        for (int r = 0; r < rows; ++r) {
          for (int j = 0; j < keys; ++j) {
            listed_p[static_cast<std::size_t>(r * keys + j)] =
                p[static_cast<std::size_t>(r * keys + (4 * j + 2) % keys)];
          }
        }
        std::vector<float> listed_o(o.size(), 1.0F);
        // What is asked for ahead changes no result, and ends.
        const std::int64_t element_bytes = storage == 0 ? 4 : 2;
        Ahead ahead{.data = static_cast<const char*>(stored[storage]),
                    .at = at.data(),
                    .element_bytes = element_bytes,
                    .bytes = dim * element_bytes,
                    .count = keys / 2};
        m().listed_products[storage](rows, keys, dim, a.data(), dim, stored[storage], at.data(),
                                     listed_s.data(), keys, ahead);
        m().add_listed_rows[storage](rows, dim, keys, listed_p.data(), keys, stored[storage],
                                     at.data(), listed_o.data(), dim, ahead);
        for (int r = 0; r < rows; ++r) {
          for (int j = 0; j < keys; ++j) {
            const auto from = static_cast<std::size_t>(r * keys + (4 * j + 2) % keys);
            ASSERT_EQ(listed_s[static_cast<std::size_t>(r * keys + j)], s[from]) << storage;
          }
        }
        for (std::size_t i = 0; i < o.size(); ++i) ASSERT_NEAR(listed_o[i], o[i], 1e-5) << storage;
        for (int r = 0; r < rows; ++r) {
          for (int j = 0; j < keys; ++j) {
            double exact = 0.0;
            for (int i = 0; i < dim; ++i) {
              exact += a[static_cast<std::size_t>(r * dim + i)] * value(j * dim + i);
            }
            ASSERT_NEAR(s[static_cast<std::size_t>(r * keys + j)], exact, 3e-5) << storage;
          }
          for (int i = 0; i < dim; ++i) {
            double exact = 1.0;
            for (int j = 0; j < keys; ++j) {
              exact += p[static_cast<std::size_t>(r * keys + j)] * value(j * dim + i);
            }
            ASSERT_NEAR(o[static_cast<std::size_t>(r * dim + i)], exact, 1e-5) << storage;
          }
        }
      }
    }
  }
}

/// Distance in units in the last place of the exact value.
double ulp_error(float got, double exact) {
  const auto rounded = static_cast<float>(exact);
  const float step = std::nextafter(rounded, std::numeric_limits<float>::infinity()) - rounded;
  return std::abs(double{got} - exact) / double{step};
}

/// The largest error of `ours` in ulp over `normal` <= x <= 0, where the result is a normal number;
/// below it, down to `last`, it is within two steps of the subnormals.
double worst_ulp(void (*ours)(int, const float*, float*), double (*exact)(double), float normal,
                 float last) {
  // One in 9973 of the 1.1 thousand million float32; TILEWISE_TEST_ALL_FLOATS=1 takes all of them,
  // a minute or two a set.
  const std::uint32_t step = std::getenv("TILEWISE_TEST_ALL_FLOATS") != nullptr ? 1 : 9973;
  constexpr std::size_t kChunk = 4096;
  const auto last_bits = std::bit_cast<std::uint32_t>(last);
  std::vector<float> x;
  std::vector<float> y(kChunk);
  double worst = 0.0;
  for (std::uint32_t bits = std::bit_cast<std::uint32_t>(-0.0F); bits <= last_bits; bits += step) {
    x.push_back(std::bit_cast<float>(bits));
    if (x.size() < kChunk && last_bits - bits >= step) continue;
    ours(static_cast<int>(x.size()), x.data(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double value = exact(double{x[i]});
      if (x[i] >= normal) {
        worst = std::max(worst, ulp_error(y[i], value));
      } else {
        EXPECT_NEAR(y[i], value, 2e-45) << x[i];
      }
    }
    x.clear();
  }
  return worst;
}

TEST_P(MicroKernels, ExpIsWithinTwoUlp) {
  const double worst = worst_ulp(m().exp, std::exp, -87.0F, -104.0F);
  EXPECT_LE(worst, 2.0);
  EXPECT_GT(worst, 0.0) << "nothing was compared";
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST_P(MicroKernels, Exp2IsWithinTwoUlp) {
  const double worst = worst_ulp(m().exp2, std::exp2, -126.0F, -150.0F);
  EXPECT_LE(worst, 2.0);
  EXPECT_GT(worst, 0.0) << "nothing was compared";
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST_P(MicroKernels, ExpOfSpecialValues) {
  const float inf = std::numeric_limits<float>::infinity();
  const float x[] = {0.0F, -0.0F, -inf, NAN, -1e30F, inf, 1.0F};
  float y[7];
  m().exp(7, x, y);
  EXPECT_EQ(y[0], 1.0F);
  EXPECT_EQ(y[1], 1.0F);
  EXPECT_EQ(y[2], 0.0F);
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_EQ(y[4], 0.0F);
  EXPECT_EQ(y[5], inf);
  EXPECT_NEAR(y[6], std::exp(1.0), 3e-7);
  m().exp2(5, x, y);
  EXPECT_EQ(y[0], 1.0F);
  EXPECT_EQ(y[1], 1.0F);
  EXPECT_EQ(y[2], 0.0F);
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_EQ(y[4], 0.0F);
}

/// Both bases of the softmax step: e, and 2 for logits and maxima in units of ln 2.
struct Base {
  decltype(Micro::softmax_step) step;
  double log;  ///< of the base
};

class SoftmaxSteps : public MicroKernels {
 protected:
  std::vector<Base> bases() const {
    return {{m().softmax_step, 1.0}, {m().softmax_step_log2, std::numbers::ln2}};
  }
};

TEST_P(SoftmaxSteps, MergeBlocks) {
  for (const auto& [step, log] : bases()) {
    const int cols = 2 * m().lanes * 4;
    const auto logits = random_floats(static_cast<std::size_t>(cols), 5);
    auto first = std::vector<float>(logits.begin(), logits.begin() + cols / 2);
    auto second = std::vector<float>(logits.begin() + cols / 2, logits.end());
    for (float& x : second) x += 3.0F;  // the maximum grows
    float maximum = -std::numeric_limits<float>::infinity();
    float sum = 0.0F;
    float alpha = NAN;
    step(1, cols / 2, first.data(), cols, &maximum, &sum, &alpha);
    EXPECT_EQ(alpha, 0.0F) << "nothing seen before";
    step(1, cols / 2, second.data(), cols, &maximum, &sum, &alpha);
    EXPECT_GT(alpha, 0.0F);
    EXPECT_LT(alpha, 1.0F);
    double exact = 0.0;
    for (int i = 0; i < cols; ++i) {
      const double x = double{logits[static_cast<std::size_t>(i)]} + (i < cols / 2 ? 0.0 : 3.0);
      exact += std::exp(x * log);
    }
    EXPECT_NEAR(maximum * log + std::log(sum), std::log(exact), 1e-5);
  }
}

TEST_P(SoftmaxSteps, ARowThatSeesNothingStaysEmpty) {
  for (const auto& [step, log] : bases()) {
    const float hidden = -std::numeric_limits<float>::infinity();
    std::vector<float> s(static_cast<std::size_t>(m().lanes), hidden);
    float maximum = hidden;
    float sum = 0.0F;
    float alpha = NAN;
    step(1, m().lanes, s.data(), m().lanes, &maximum, &sum, &alpha);
    EXPECT_EQ(maximum, hidden) << log;
    EXPECT_EQ(sum, 0.0F);
    EXPECT_EQ(alpha, 1.0F);
    for (const float p : s) EXPECT_EQ(p, 0.0F);
  }
}

TEST_P(MicroKernels, ProbabilitiesNeverPassOne) {
  const int n = m().lanes;
  std::vector<float> s(static_cast<std::size_t>(n), 5e8F);
  const float low = 0.0F;
  float lse = 4e8F;  // rounded far below the scores: the exponent is clamped at 0
  m().probabilities(1, n, s.data(), n, &lse, &low);
  for (const float p : s) EXPECT_EQ(p, 1.0F);
  lse = std::numeric_limits<float>::infinity();
  s.assign(s.size(), 1.0F);
  m().probabilities(1, n, s.data(), n, &lse, &low);
  for (const float p : s) EXPECT_EQ(p, 0.0F);
}

/// What becomes of a panel's product in registers, beside its plain sums.
TEST_P(MicroKernels, ScoresBecomeWhatFollowsThem) {
  const int lanes = m().lanes;
  const int panel_cols = m().panel_cols;
  for (int rows = 1; rows <= 13; ++rows) {
    for (int cols = lanes; cols <= panel_cols; cols += lanes) {
      for (const int k : {1, 64, 65, 130}) {
        const auto n = [](int count) { return static_cast<std::size_t>(count); };
        const int ld = panel_cols + lanes;
        auto a = random_floats(n(rows * k), 1);
        for (float& x : a) x *= 0.3F;
        const auto panel = random_floats(n(k * panel_cols), 2);
        std::vector<float> s(n(rows * ld), NAN);
        m().scores({rows, cols, k, a.data(), k, panel.data(), s.data(), ld});

        const auto high = random_floats(n(rows), 3);
        const auto low = random_floats(n(rows), 4);
        auto p = s;
        auto sums = std::vector<float>(n(rows * lanes), 1.0F);
        m().score_weights({rows, cols, k, a.data(), k, panel.data(), p.data(), ld}, high.data(),
                          sums.data());
        auto clamped = s;
        m().score_probabilities({rows, cols, k, a.data(), k, panel.data(), clamped.data(), ld},
                                high.data(), low.data());
        auto ds = s;
        m().score_gradients({rows, cols, k, a.data(), k, panel.data(), ds.data(), ld}, p.data(),
                            low.data(), 0.5F);
        for (int r = 0; r < rows; ++r) {
          double total = lanes;
          for (int j = 0; j < cols; ++j) {
            const auto at = n(r * ld + j);
            double exact = 0.0;
            for (int i = 0; i < k; ++i) {
              exact += double{a[n(r * k + i)]} * panel[n(i * panel_cols + j)];
            }
            ASSERT_NEAR(s[at], exact, 2e-5);
            const double weight = std::exp2(double{s[at]} - high[n(r)]);
            ASSERT_NEAR(p[at], weight, 1e-6 * weight);
            const double x = std::min(double{s[at]} - high[n(r)] - low[n(r)], 0.0);
            ASSERT_NEAR(clamped[at], std::exp2(x), 1e-6 * std::exp2(x));
            const double gradient = 0.5 * p[at] * (double{s[at]} - low[n(r)]);
            ASSERT_NEAR(ds[at], gradient, 1e-6 * (std::abs(gradient) + p[at]));
            total += p[at];
          }
          float sum = 3.0F;
          m().take_sums(1, sums.data() + r * lanes, &sum);
          ASSERT_NEAR(sum, 3.0 + total, 1e-5 * total);
        }
      }
    }
  }
}

TEST_P(MicroKernels, WeightsThatAFloatCannotHoldAreNotFinite) {
  const int n = m().panel_cols;
  const float a = 1.0F;
  std::vector<float> panel(static_cast<std::size_t>(n), 0.0F);
  std::vector<float> p(panel.size());
  std::vector<float> sums(static_cast<std::size_t>(m().lanes));
  const float m0 = 0.0F;
  for (const float score : {129.0F, 300.0F, 1e6F, 3e38F}) {
    panel[1] = score;
    m().score_weights({1, n, 1, &a, 1, panel.data(), p.data(), n}, &m0, sums.data());
    EXPECT_FALSE(std::isfinite(p[1])) << score;
    EXPECT_FALSE(m().all_finite(n, p.data()));
  }
  panel[1] = 100.0F;
  m().score_weights({1, n, 1, &a, 1, panel.data(), p.data(), n}, &m0, sums.data());
  EXPECT_TRUE(m().all_finite(n, p.data()));
}

TEST_P(MicroKernels, FirstMaximaAndTheirWeights) {
  const float hidden = -std::numeric_limits<float>::infinity();
  const int n = 2 * m().lanes;
  const auto at = [&](int row) { return static_cast<std::size_t>(row * n); };
  std::vector<float> s(at(3), hidden);
  s[at(0) + 1] = 2.0F;
  s[at(2)] = 5.0F;
  std::vector<float> maxima{hidden, hidden, 4.0F};  // the last row has seen its maximum already
  EXPECT_FALSE(m().first_maxima(3, n, s.data(), n, maxima.data()));
  EXPECT_EQ(maxima, (std::vector<float>{2.0F, hidden, 4.0F}));
  std::vector<float> sums(static_cast<std::size_t>(3 * m().lanes), 0.0F);
  std::vector<float> l(3, 4.0F);
  m().weights(3, n, s.data(), n, maxima.data(), sums.data());
  m().take_sums(3, sums.data(), l.data());
  EXPECT_EQ(l, (std::vector<float>{5.0F, 4.0F, 6.0F}));
  EXPECT_EQ(sums, std::vector<float>(sums.size(), 0.0F));
  s.assign(s.size(), hidden);
  s[at(1)] = -3.0F;
  EXPECT_TRUE(m().first_maxima(3, n, s.data(), n, maxima.data()));
  EXPECT_EQ(maxima[1], -3.0F);
}

TEST_P(MicroKernels, Transpose) {
  constexpr std::size_t kCols = 37, kLd = 64;
  const auto lanes = static_cast<std::size_t>(m().lanes);
  for (std::size_t rows = 1; rows <= 37; ++rows) {
    const auto src = random_floats(rows * kCols, 9);  // no element past the last row
    std::vector<float> dst(kCols * kLd, NAN);
    m().transpose(static_cast<int>(rows), kCols, src.data(), kCols, dst.data(), kLd, 2.0F);
    const std::size_t padded = (rows + lanes - 1) / lanes * lanes;
    for (std::size_t c = 0; c < kCols; ++c) {
      const float* row = dst.data() + c * kLd;
      for (std::size_t r = 0; r < rows; ++r) ASSERT_EQ(row[r], 2.0F * src[r * kCols + c]);
      for (std::size_t r = rows; r < padded; ++r) ASSERT_EQ(row[r], 0.0F);
      for (std::size_t r = padded; r < kLd; ++r) ASSERT_TRUE(std::isnan(row[r]));
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<Isa>& p) {
  return std::string(isa_name(p.param));
}
const auto kEverySet = ::testing::Values(Isa::scalar, Isa::avx2, Isa::avx512);
INSTANTIATE_TEST_SUITE_P(EverySet, MicroKernels, kEverySet, name_of);
INSTANTIATE_TEST_SUITE_P(EverySet, SoftmaxSteps, kEverySet, name_of);

}  // namespace
}  // namespace tilewise::cpu
