/// Huge logits, tiny problems, overflow: CONTRACT 11.
#include <cmath>
#include <limits>

#include "contract/harness.h"

namespace tilewise::contract {
namespace {

TEST_P(Forward, C028HugeEqualInputs) {
  for (const std::int64_t seq : {1, 128}) {
    Trial s = trial(DType::bfloat16, 1, 1, 1, seq, seq, 64, 64);
    s.q = s.k = s.v = constant(seq * 64, 133120.0);
    const Results r = run(s);
    expect_all(r.o, 133120.0, "O");
    const double logit = 133120.0 * 133120.0 * 64.0 / 8.0;
    EXPECT_NEAR(logit, 1.417675e11, 1e6);
    expect_near(r.lse, constant(seq, logit + std::log(static_cast<double>(seq))), 1e-5 * logit,
                "LSE");
  }
}

TEST_P(Forward, C029EveryLogitFarBelowAnySentinel) {
  for (const std::int64_t keys : {2, 1}) {
    Trial s = trial(DType::bfloat16, 1, 1, 1, 1, keys, 128, 128);
    s.q = constant(128, 64.0);
    s.k = constant(keys * 128, -64.0);
    s.v = constant(keys * 128, 1.0);  // q.k = -524288
    const Results r = run(s);
    expect_all(r.o, 1.0, "O");
    const double expected = keys == 2 ? -46340.2569 : -524288.0 / std::sqrt(128.0);
    expect_near(r.lse, {expected}, -1e-5 * expected, "LSE");  // CONTRACT 18
  }
}

TEST_P(Backward, C034LargeHalfPrecisionLogits) {
  Trial s = trial(DType::float16, 1, 1, 1, 192, 192, 128, 128).fill(11, 3.0);
  s.spec.causal = Causal::bottom_right;
  const Results r = run(s);
  for (const Values* gradient : {&r.dq, &r.dk, &r.dv}) expect_finite(*gradient, "gradient");
  expect_gradients_conform(s, r);
}

TEST_P(Backward, C035TheSmallestProblem) {
  Trial s = trial(DType::float16, 1, 1, 1, 1, 1, 16, 16).fill(12, 3.0);
  s.d_o = constant(16, 1.0);
  const Results r = run(s);
  expect_all(r.dq, 0.0, "dQ");
  expect_all(r.dk, 0.0, "dK");
  expect_all(r.dv, 1.0, "dV");
}

TEST_P(Forward, C035TheSmallestProblem) {
  const Trial s = trial(DType::float16, 1, 1, 1, 1, 1, 16, 16).fill(12, 3.0);
  EXPECT_EQ(run(s).o, Owned(DType::float16, {16}, s.v).values());
}

/// dS is 0: dP, and delta is its average. Any difference between the two is summed over queries.
TEST_P(TypedBackward, OneKeyHasNoGradientOfItsScore) {
  Trial whole = trial(DType::bfloat16, 1, 8, 2, 255, 1, 16, 200).fill(19);
  Trial windows = trial(DType::bfloat16, 1, 4, 2, 160, 160, 192, 192).fill(20);
  windows.spec.window = {.left = 0, .right = 0};
  Trial capped = whole;
  capped.spec.softcap = 15.0;
  for (const DType dtype : types_) {
    for (Trial* s : {&whole, &windows, &capped}) {
      s->dtype = dtype;
      const Results r = run_backward(*s, GetParam());
      expect_near(r.dq, constant(std::ssize(r.dq), 0.0), 1e-5, "dQ");
      expect_near(r.dk, constant(std::ssize(r.dk), 0.0), 1e-5, "dK");
    }
  }
}

/// Logits near 1e17, where neighbouring floats are 1e10 apart.
Trial enormous() {
  Trial s = trial(DType::float32, 1, 1, 1, 16, 16, 8, 8).fill(13);
  for (std::int64_t n = 0; n < 16 * 8; ++n) {
    const auto at = static_cast<std::size_t>(n);
    s.q[at] = (n / 8) % 2 == 0 ? 4.9956e8 : -4.9956e8;
    s.k[at] = (n / 8) % 4 < 2 ? 4.9956e8 : -4.9956e8;
  }
  return s;
}

TEST_P(Forward, C037EnormousLogitsAreMeansOfTies) {
  const Trial s = enormous();
  Values expected(16 * 8, 0.0);
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t j = 0; j < 16; ++j) {
      const bool tied_for_the_maximum = (i % 2 == 0) == (j % 4 < 2);  // 8 keys for every row
      for (std::size_t d = 0; d < 8; ++d) {
        if (tied_for_the_maximum) expected[i * 8 + d] += static_cast<float>(s.v[j * 8 + d]) / 8.0;
      }
    }
  }
  expect_near(run(s).o, expected, 1e-6, "O");
}

TEST_P(Backward, C037EnormousLogitsGiveFiniteGradients) {
  const Results r = run(enormous());
  for (const Values* gradient : {&r.dq, &r.dk, &r.dv}) expect_finite(*gradient, "gradient");
}

/// Values near the top of float16 over many keys: the sum is kept in float32.
TEST_P(Forward, C038SumsOfLargeHalfPrecisionValues) {
  constexpr std::int64_t kKeys = 5000;
  Trial s = trial(DType::float16, 1, 1, 1, 1, kKeys, 128, 8);
  s.q = constant(128, 300.0);
  s.k = constant(kKeys * 128, 300.0);
  s.v = constant(kKeys * 8, 60000.0);
  expect_all(run(s).o, 60000.0, "O");
}

void expect_merge(std::pair<double, double> a, std::pair<double, double> b, double o, double lse) {
  for (int order = 0; order < 2; ++order) {
    Owned o_a(DType::float32, {1, 1, 1, 2}, constant(2, a.first)),
        l_a(DType::float32, {1, 1, 1}, {a.second});
    Owned o_b(DType::float32, {1, 1, 1, 2}, constant(2, b.first)),
        l_b(DType::float32, {1, 1, 1}, {b.second});
    merge(o_a.tensor(), l_a.tensor(), o_b.tensor(), l_b.tensor());
    expect_near(o_a.values(), constant(2, o), 1e-6, "O");
    expect_near(l_a.values(), {lse}, 1e-6 * std::max(1.0, std::abs(lse)), "LSE");
    std::swap(a, b);
  }
}

TEST(Merge, C039NeverOverflows) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  expect_merge({1, -50}, {2, 60}, 2, 60);
  expect_merge({1, -1e30}, {2, 1e30}, 2, 1e30);
  expect_merge({1, 0}, {3, 0}, 2, std::log(2.0));
  expect_merge({1, -1e30}, {3, -1e30}, 2, -1e30);
  expect_merge({0, -kInfinity}, {2, 3}, 2, 3);
  expect_merge({0, -kInfinity}, {0, -kInfinity}, 0, -kInfinity);
}

TEST_P(Forward, C041TinyInputsAndAMask) {
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    Trial s = trial(dtype, 2, 4, 4, 8, 16, 128, 128).fill(14, 1.0 / 256.0);
    std::vector<bool> visible(32, true);
    std::fill(visible.begin() + 7, visible.begin() + 16, false);
    Owned mask = booleans({2, 1, 1, 16}, visible);
    s.spec.mask = mask.tensor();
    const Results r = run(s);
    expect_conforms(s, r);

    Trial first = trial(dtype, 1, 4, 4, 8, 7, 128, 128);
    first.q = slice(s.q, 0, 4 * 8 * 128);
    for (auto [to, from] : {std::pair{&first.k, &s.k}, std::pair{&first.v, &s.v}}) {
      to->clear();
      for (std::int64_t h = 0; h < 4; ++h) {
        const Values keys = slice(*from, h * 16 * 128, (h * 16 + 7) * 128);
        to->insert(to->end(), keys.begin(), keys.end());
      }
    }
    expect_near(slice(r.o, 0, 4 * 8 * 128), run(first).o, dtype == DType::float32 ? 1e-7 : 1e-4,
                "O");
  }
}

TEST_P(Forward, AVisibleNanReachesItsRowsAndNoOthers) {
  for (const int which : {0, 1, 2, 3}) {
    Trial s = trial(DType::float32, 1, 1, 1, 6, 6, 8, 8).fill(15);
    s.spec.causal = Causal::bottom_right;
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    Values bias_values = constant(36, 0.0);
    if (which == 0) s.q[3 * 8] = kNan;
    if (which == 1) s.k[3 * 8] = kNan;
    if (which == 3) bias_values[3 * 6 + 3] = kNan;
    Owned bias(DType::float32, {6, 6}, bias_values);
    s.spec.bias = bias.tensor();
    const Results r = run(s);
    for (std::int64_t i = 0; i < 6; ++i) {
      const bool sees = which == 1 ? i >= 3 : which != 2 && i == 3;
      for (std::int64_t d = 0; d < 8; ++d) {
        EXPECT_EQ(std::isnan(r.o[static_cast<std::size_t>(i * 8 + d)]), sees)
            << which << " row " << i;
      }
      EXPECT_EQ(std::isnan(r.lse[static_cast<std::size_t>(i)]), sees) << which << " row " << i;
    }
  }
}

TEST_P(Forward, ZeroAndNegativeScales) {
  for (const double scale : {0.0, -0.5, -40.0}) {
    Trial s = trial(DType::float32, 1, 1, 1, 9, 17, 16, 16).fill(16);
    s.spec.scale = scale;
    expect_conforms(s, run(s));
  }
}

/// dS^T Q and dS K would overflow where their products with a small scale do not.
TEST_P(Backward, ASmallScaleKeepsGradientsFinite) {
  for (const double scale : {0.0, 1e-30}) {
    for (const bool large_queries : {true, false}) {
      Trial s = trial(DType::float32, 1, 2, 1, 64, 64, 64, 64).fill(17);
      s.spec.scale = scale;
      for (double& x : s.q) x *= large_queries ? 1e35 : 1e-6;
      for (double& x : s.k) x *= large_queries ? 1e-6 : 1e35;
      for (double& x : s.d_o) x *= 1e4;
      const Results r = run(s);
      for (const Values* gradient : {&r.dq, &r.dk}) expect_finite(*gradient, "gradient");
      expect_gradients_conform(s, r);
    }
  }
}

}  // namespace
}  // namespace tilewise::contract
