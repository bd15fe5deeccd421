/// A score function of the caller's own, in forward and backward of flash: values against the
/// reference, gradients against finite differences of the forward.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tilewise/attention.h"

namespace tilewise {
namespace {

constexpr std::int64_t kQueries = 70;  // two tiles of every flash kernel, both ragged
constexpr std::int64_t kKeys = 150;
constexpr std::int64_t kDim = 8;

/// A soft relative-position penalty that depends on the score itself: mod(x) = x - a |i - j|
/// tanh(x).
float penalty(std::int64_t i, std::int64_t j) {
  return 0.02F * static_cast<float>(std::abs(i - j));
}

ScoreMod soft_penalty() {
  ScoreMod mod;
  mod.apply = [](const ScoreTile& x) {
    for (std::int64_t r = 0; r < x.rows; ++r) {
      for (std::int64_t c = 0; c < x.cols; ++c) {
        float& s = x.scores[r * x.row_stride + c];
        s -= penalty(x.i0 + r, x.j0 + c) * std::tanh(s);
      }
    }
  };
  mod.derivative = [](const ScoreTile& x, float* grad) {
    for (std::int64_t r = 0; r < x.rows; ++r) {
      for (std::int64_t c = 0; c < x.cols; ++c) {
        const float t = std::tanh(x.scores[r * x.row_stride + c]);
        grad[r * x.row_stride + c] *= 1.0F - penalty(x.i0 + r, x.j0 + c) * (1.0F - t * t);
      }
    }
  };
  return mod;
}

struct Example {
  std::vector<float> q = random(kQueries), k = random(kKeys), v = random(kKeys),
                     d_o = random(kQueries);
  std::vector<float> o = poison(kQueries * kDim), lse = poison(kQueries);
  std::vector<float> dq = poison(kQueries * kDim), dk = poison(kKeys * kDim),
                     dv = poison(kKeys * kDim);
  ScoreMod mod = soft_penalty();
  AttentionSpec spec;

  Example() {
    spec.score_mod = &mod;
    spec.causal = Causal::bottom_right;
    spec.softcap = 4.0;
  }
  static std::vector<float> random(std::int64_t rows) {
    static std::mt19937 generator(11);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<std::size_t>(rows * kDim));
    for (float& value : x) value = normal(generator);
    return x;
  }
  static std::vector<float> poison(std::int64_t n) {
    return std::vector<float>(static_cast<std::size_t>(n), NAN);
  }
  static Tensor tensor(std::vector<float>& x) {
    const auto rows = static_cast<std::int64_t>(x.size()) / kDim;
    return Tensor::bhsd(x.data(), DType::float32, 1, 1, rows, kDim);
  }
  Tensor lse_tensor() { return Tensor::contiguous(lse.data(), DType::float32, {1, 1, kQueries}); }
  void forward(const char* implementation) {
    tilewise::forward({tensor(q), tensor(k), tensor(v), tensor(o), lse_tensor(), {}}, spec, {},
                      {.implementation = implementation, .kernel = ""});
  }
  void backward(const char* implementation) {
    tilewise::backward({tensor(q),
                        tensor(k),
                        tensor(v),
                        tensor(o),
                        lse_tensor(),
                        tensor(d_o),
                        {},
                        tensor(dq),
                        tensor(dk),
                        tensor(dv),
                        {},
                        {},
                        {}},
                       spec, {}, {.implementation = implementation, .kernel = ""});
  }
  /// sum(O * dO), in float64.
  double loss() {
    forward("reference");
    double sum = 0.0;
    for (std::size_t i = 0; i < o.size(); ++i) sum += double{o[i]} * d_o[i];
    return sum;
  }
};

void expect_near(const std::vector<float>& got, const std::vector<float>& want, double bound) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], bound) << i;
}

TEST(ScoreMod, FlashEqualsTheReference) {
  Example flash;
  flash.forward("flash");
  flash.backward("flash");
  Example reference = flash;
  reference.spec.score_mod = &reference.mod;
  reference.forward("reference");
  reference.backward("reference");
  expect_near(flash.o, reference.o, 2e-6);
  expect_near(flash.lse, reference.lse, 1e-5);
  expect_near(flash.dq, reference.dq, 1e-5);
  expect_near(flash.dk, reference.dk, 1e-5);
  expect_near(flash.dv, reference.dv, 1e-5);
  Example plain = flash;
  plain.spec.score_mod = nullptr;
  plain.forward("flash");
  EXPECT_NE(plain.o, flash.o) << "the score function changes something";
}

TEST(ScoreMod, GradientsAreThoseOfTheForward) {
  Example e;
  e.forward("flash");
  e.backward("flash");
  constexpr float kStep = 1e-2F;
  for (const std::size_t i : {0U, 13U, 200U, 431U}) {
    for (auto [x, gradient] : {std::pair(&e.q, &e.dq), std::pair(&e.k, &e.dk)}) {
      const float before = (*x)[i];
      (*x)[i] = before + kStep;
      const double above = e.loss();
      (*x)[i] = before - kStep;
      const double below = e.loss();
      (*x)[i] = before;
      EXPECT_NEAR((*gradient)[i], (above - below) / (2.0 * kStep), 2e-3) << i;
    }
  }
}

TEST(ScoreMod, BackwardWithoutADerivativeIsRefused) {
  Example e;
  e.forward("flash");
  e.mod.derivative = nullptr;
  EXPECT_THROW(e.backward("flash"), InvalidArgument);
}

}  // namespace
}  // namespace tilewise
