/// Heads, softcap, bias, ALiBi, sinks, the gradient of LSE: CONTRACT 1, 7, 12.
#include <cmath>
#include <limits>

#include "contract/harness.h"

namespace tilewise::contract {
namespace {

TEST_P(Forward, C079HeadsAreRepeatedNotTiled) {
  Trial s = trial(DType::float32, 1, 4, 2, 1, 1, 8, 1);
  s.v = {0, 1};
  expect_near(run(s).o, {0, 0, 1, 1}, 0.0, "O");
}

/// Golden G8: the gradient through LSE alone.
Trial golden_lse() {
  Trial s = trial(DType::float32, 1, 1, 1, 1, 2, 1, 1);
  s.q = {1};
  s.k = {1, 2};
  s.d_o = {0};
  s.d_lse = {1};
  s.spec.scale = 1.0;
  return s;
}

TEST_P(Backward, C015TheGradientThroughLse) {
  const Results r = run(golden_lse());
  expect_near(r.dq, {1.7310585786}, 1e-6, "dQ");
  expect_near(r.dk, {0.2689414214, 0.7310585786}, 1e-6, "dK");
  expect_near(r.dv, {0, 0}, 0.0, "dV");
}

TEST_P(Backward, C015AMeanOfLse) {
  Trial s = trial(DType::bfloat16, 2, 2, 2, 65, 65, 64, 64).fill(50);
  s.d_o = constant(2 * 2 * 65 * 64, 0.0);
  s.d_lse = constant(s.rows(), 1.0 / 65);
  const Results r = run(s);
  expect_gradients_conform(s, r);
  EXPECT_NE(r.dq[0], 0.0);
}

/// Golden G7: softcap.
Trial golden_softcap() {
  Trial s = trial(DType::float32, 1, 1, 1, 1, 2, 1, 1);
  s.q = {2};
  s.k = {3, 1};
  s.v = {1, 0};
  s.spec.scale = 1.0;
  s.spec.softcap = 4.0;
  return s;
}

TEST_P(Forward, C085Softcap) {
  const Results r = run(golden_softcap());
  expect_near(r.o, {0.8547216603}, 1e-6, "O");
  expect_near(r.lse, {3.7775724212}, 1e-6, "LSE");
}

TEST_P(Backward, C085Softcap) {
  const Results r = run(golden_softcap());
  expect_near(r.dq, {-0.0303388064}, 1e-6, "dQ");
  expect_near(r.dk, {0.0448776061, -0.1953104311}, 1e-6, "dK");
}

Trial capped() {
  Trial s = trial(DType::bfloat16, 1, 2, 2, 128, 217, 128, 128).fill(51, 2.0);
  s.spec.softcap = 15.0;
  s.spec.causal = Causal::bottom_right;
  return s;
}
TEST_P(Forward, C085SoftcapOnLargeLogits) { expect_conforms(capped(), run(capped())); }
TEST_P(Backward, C085SoftcapOnLargeLogits) { expect_gradients_conform(capped(), run(capped())); }

/// Bias in float32 with bfloat16 inputs.
TEST_P(Backward, C083ABiasOfAnotherType) {
  Trial s = trial(DType::bfloat16, 2, 4, 4, 40, 40, 32, 32).fill(52);
  s.k = s.q;
  s.v = s.q;
  Owned bias(DType::float32, {1, 4, 40, 40}, randn(4 * 40 * 40, 53));
  s.spec.bias = bias.tensor();
  const Results r = run(s);
  expect_finite(r.dbias, "dbias");
  expect_gradients_conform(s, r);
}

/// Every shape that broadcasts, every type.
TEST_P(Backward, BiasGradientsOfEveryShape) {
  const std::vector<Sizes> shapes{{2, 4, 13, 21}, {1, 4, 13, 21}, {2, 1, 13, 21}, {13, 21},
                                  {1, 21},        {21},           {2, 1, 1, 21},  {1, 4, 13, 1},
                                  {1, 1, 1, 1},   {4, 1, 1}};
  std::uint64_t seed = 54;
  for (const Sizes& shape : shapes) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      Trial s = trial(DType::float32, 2, 4, 2, 13, 21, 16, 8).fill(seed++);
      std::int64_t count = 1;
      for (const std::int64_t size : shape) count *= size;
      Owned bias(dtype, shape, randn(count, seed));
      s.spec.bias = bias.tensor();
      expect_gradients_conform(s, run(s));
    }
  }
}

struct Sinks {
  Owned sinks = Owned(DType::float32, {4}, {-1.0, 0.0, 0.5, 3.0});
  Trial s = trial(DType::float32, 2, 4, 2, 65, 65, 32, 32).fill(60);
  Sinks() {
    s.spec.sinks = sinks.tensor();
    s.spec.causal = Causal::bottom_right;
  }
};

TEST_P(Forward, C087Sinks) {
  Sinks c;
  expect_conforms(c.s, run(c.s));
}

TEST_P(Backward, C087Sinks) {
  Sinks c;
  const Results r = run(c.s);
  expect_gradients_conform(c.s, r);
  // dsink_h = - sum_i P_sink(i) delta(i), from forward's own results.
  const reference::Forward f = forward_truth(c.s);
  const Values d_o = Owned(DType::float32, {2, 4, 65, 32}, c.s.d_o).values();
  const Values sink_logits = c.sinks.values();
  Values expected(4, 0.0);
  for (std::int64_t row = 0; row < 2 * 4 * 65; ++row) {
    const auto h = static_cast<std::size_t>(row / 65 % 4);
    double delta = 0.0;
    for (std::int64_t d = row * 32; d < row * 32 + 32; ++d) {
      delta += d_o[static_cast<std::size_t>(d)] * f.o[static_cast<std::size_t>(d)];
    }
    expected[h] -= std::exp(sink_logits[h] - f.lse[static_cast<std::size_t>(row)]) * delta;
  }
  expect_near(r.dsinks, expected, 2e-5, "dsinks");
}

TEST_P(Backward, ASinkOnEmptyRowsTakesTheGradientOfLse) {
  Trial s = trial(DType::float32, 1, 1, 1, 4, 1, 8, 8).fill(61);
  s.spec.causal = Causal::bottom_right;  // rows 0 to 2 see nothing
  Owned sink(DType::float32, {1}, {0.25});
  s.spec.sinks = sink.tensor();
  s.d_lse = {1, 2, 4, 0};
  s.d_o = constant(4 * 8, 0.0);
  expect_near(run(s).dsinks, {7}, 1e-5, "dsinks");
}

/// exp(-inf) = 0: such a sink takes nothing, on rows that see no key either.
TEST_P(Backward, ASinkOfMinusInfinityIsNone) {
  Trial s = trial(DType::float32, 1, 1, 1, 4, 2, 8, 8).fill(67);
  s.spec.causal = Causal::bottom_right;  // rows 0 and 1 see nothing
  s.d_lse = randn(4, 68);
  const Results expected = run(s);
  Owned sink(DType::float32, {1}, {-std::numeric_limits<double>::infinity()});
  s.spec.sinks = sink.tensor();
  const Results r = run(s);
  expect_near(r.dq, expected.dq, 1e-6, "dQ");
  expect_near(r.dk, expected.dk, 1e-6, "dK");
  expect_near(r.dsinks, {0}, 0.0, "dsinks");
}

TEST_P(Forward, C088Alibi) {
  const Values heads = counting(10, 1.0);
  for (const bool per_batch : {false, true}) {
    for (const std::int64_t seq_q : {1, 37}) {
      for (const Causal causal : {Causal::none, Causal::bottom_right}) {
        Trial s = trial(DType::float32, 2, 10, 10, seq_q, 101, 16, 16).fill(62);
        s.spec.causal = causal;
        Values slopes;
        for (std::int64_t b = 0; b < (per_batch ? 2 : 1); ++b) {
          for (const double h : heads)
            slopes.push_back(std::exp2(-h * 0.8 - static_cast<double>(b)));
        }
        Owned slope_tensor(DType::float32, per_batch ? Sizes{2, 10} : Sizes{10}, slopes);
        s.spec.alibi_slopes = slope_tensor.tensor();
        const Results r = run(s);
        expect_conforms(s, r);

        // The same as a bias written out, in decode and in training alike.
        Values bias;
        for (std::int64_t b = 0; b < 2; ++b) {
          for (std::size_t h = 0; h < 10; ++h) {
            const double slope =
                static_cast<float>(slopes[(per_batch ? static_cast<std::size_t>(b) * 10 : 0) + h]);
            for (std::int64_t i = 0; i < seq_q; ++i) {
              for (std::int64_t j = 0; j < 101; ++j)
                bias.push_back(-slope * std::abs(double(i + 101 - seq_q - j)));
            }
          }
        }
        Owned bias_tensor(DType::float32, {2, 10, seq_q, 101}, bias);
        s.spec.alibi_slopes = {};
        s.spec.bias = bias_tensor.tensor();
        const Results written_out = run(s);
        expect_near(r.o, written_out.o, 1e-5, "O");
        expect_near(r.lse, written_out.lse, 1e-5, "LSE");
      }
    }
  }
}

/// A soft penalty on distance, the contract's example of a score function: x - w * sqrt(1 + (i -
/// j)^2) * tanh(x).
struct SoftPenalty {
  ScoreMod mod;
  SoftPenalty() {
    const auto weight = [](const ScoreTile& t, std::int64_t r, std::int64_t c) {
      const auto distance = static_cast<float>(t.i0 + r - t.j0 - c);
      return (0.01F + 0.01F * static_cast<float>(t.h)) * std::sqrt(1.0F + distance * distance);
    };
    mod.apply = [weight](const ScoreTile& t) {
      for (std::int64_t r = 0; r < t.rows; ++r) {
        for (std::int64_t c = 0; c < t.cols; ++c) {
          float& x = t.scores[r * t.row_stride + c];
          x -= weight(t, r, c) * std::tanh(x);
        }
      }
    };
    mod.derivative = [weight](const ScoreTile& t, float* grad) {
      for (std::int64_t r = 0; r < t.rows; ++r) {
        for (std::int64_t c = 0; c < t.cols; ++c) {
          const float tanh = std::tanh(t.scores[r * t.row_stride + c]);
          grad[r * t.row_stride + c] *= 1.0F - weight(t, r, c) * (1.0F - tanh * tanh);
        }
      }
    };
  }
};

Trial penalised(const SoftPenalty& penalty) {
  Trial s = trial(DType::float32, 2, 4, 2, 70, 90, 32, 16).fill(63);
  s.spec.score_mod = &penalty.mod;
  s.spec.causal = Causal::bottom_right;
  s.spec.softcap = 5.0;
  return s;
}

TEST_P(Forward, AScoreFunctionOfTheCaller) {
  const SoftPenalty penalty;
  const Trial s = penalised(penalty);
  if (skips(s)) return;
  expect_conforms(s, run(s));
}

TEST_P(Backward, AScoreFunctionOfTheCaller) {
  const SoftPenalty penalty;
  const Trial s = penalised(penalty);
  if (skips(s)) return;
  expect_gradients_conform(s, run(s));
}

/// Masks come after the score function, and a bias of -inf is a mask (CONTRACT 3): a function that
/// forgets its score does not bring hidden keys back, and one that is NaN at -inf does no harm.
struct HidingBias {
  ScoreMod mod;
  Owned bias = Owned(DType::float32, {4}, {0, -std::numeric_limits<double>::infinity(), 0, 0});
  Owned mask = booleans({4}, {true, true, false, true});
  Trial s = trial(DType::float32, 1, 1, 1, 3, 4, 8, 1);
  explicit HidingBias(float (*function)(float), float (*derivative)(float)) {
    const auto each = [](const ScoreTile& t, auto f) {
      for (std::int64_t r = 0; r < t.rows; ++r) {
        for (std::int64_t c = 0; c < t.cols; ++c) f(r * t.row_stride + c);
      }
    };
    mod.apply = [=](const ScoreTile& t) {
      each(t, [&](std::int64_t n) { t.scores[n] = function(t.scores[n]); });
    };
    mod.derivative = [=](const ScoreTile& t, float* grad) {
      each(t, [&](std::int64_t n) { grad[n] *= derivative(t.scores[n]); });
    };
    s.v = {1, 2, 4, 8};
    s.spec.bias = bias.tensor();
    s.spec.mask = mask.tensor();
    s.spec.causal = Causal::bottom_right;
    s.spec.score_mod = &mod;
  }
};

TEST_P(Forward, AScoreFunctionCannotUnhideAKey) {
  const HidingBias zero([](float) { return 0.0F; }, [](float) { return 0.0F; });
  if (skips(zero.s)) return;
  const Results r = run(zero.s);
  expect_near(r.o, {1, 1, 4.5}, 1e-6, "O");
  expect_near(r.lse, {0, 0, std::log(2.0)}, 1e-6, "LSE");
}

TEST_P(Backward, AScoreFunctionThatIsNanAtMinusInfinityDoesNoHarm) {
  HidingBias sine([](float x) { return x + std::sin(x); }, [](float x) { return 1 + std::cos(x); });
  sine.s.fill(66);
  if (skips(sine.s)) return;
  const Results r = run(sine.s);
  for (const Values* gradient : {&r.dq, &r.dk, &r.dv, &r.dbias})
    expect_finite(*gradient, "gradient");
  expect_gradients_conform(sine.s, r);
}

TEST(ScoreFunction, FlashTakesIt) {
  const SoftPenalty penalty;
  const Trial s = penalised(penalty);
  EXPECT_EQ(run_forward(s, "").plan.implementation, "flash");
  EXPECT_EQ(run_backward(s, {.kernel = "", .implementation = "flash"}).plan.implementation,
            "flash");
}

/// All at once.
TEST_P(Backward, EverythingTogether) {
  Trial s = trial(DType::float32, 2, 4, 2, 45, 67, 24, 40).fill(64);
  Owned bias(DType::float32, {2, 1, 45, 67}, randn(2 * 45 * 67, 65));
  Owned slopes(DType::float32, {4}, {0.5, 0.25, 0.125, 0.0625});
  Owned sinks(DType::float32, {4}, {0.1, -0.2, 0.3, 0.4});
  Owned lengths = integers({67, 41});
  std::vector<bool> visible;
  for (int n = 0; n < 67; ++n) visible.push_back(n % 7 != 3);
  Owned mask = booleans({67}, visible);
  s.spec.bias = bias.tensor();
  s.spec.alibi_slopes = slopes.tensor();
  s.spec.sinks = sinks.tensor();
  s.spec.key_lengths = lengths.tensor();
  s.spec.mask = mask.tensor();
  s.spec.softcap = 3.0;
  s.spec.causal = Causal::bottom_right;
  s.spec.window.left = 30;
  s.spec.dropout = {.p = 0.3, .seed = 0x123456789ABCDEF0U, .offset = 77};
  s.spec.deterministic = true;
  s.d_lse = randn(s.rows(), 66);
  const Results r = run(s);
  expect_gradients_conform(s, r);
  EXPECT_EQ(r.bits, run(s).bits) << "deterministic backward, CONTRACT 14";
}

}  // namespace
}  // namespace tilewise::contract
