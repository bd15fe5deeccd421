/// Every gradient of the reference against finite differences of its own forward, in float64: the
/// equations (B1) to (B10) against (F1) to (F14), which the golden values pin.
///
/// A five-point stencil of step 2^-8 is off by about 1e-10 here. bias, sinks and dLSE are float32:
/// their values are multiples of 2^-10, so that every step is exact.
#include <cmath>
#include <functional>

#include "contract/harness.h"
#include "reference/elements.h"

namespace tilewise::contract {
namespace {

constexpr double kStep = 0x1p-8;

Values on_grid(std::int64_t count, std::uint64_t seed) {
  Values values = randn(count, seed);
  for (double& value : values) value = std::round(value * 0x1p10) * 0x1p-10;
  return values;
}

/// A problem whose loss is sum(O * dO) + sum(L * dL).
struct Loss {
  Trial s = trial(DType::float64, 2, 4, 2, 4, 5, 3, 2).fill(200);
  Owned bias, sinks, slopes, mask, lengths, cu_q, cu_k;
  double step = kStep;
  double tolerance = 1e-8;

  Loss() {
    s.d_lse = on_grid(s.rows(), 201);
    slopes = Owned(DType::float32, {4}, {0.5, 0.25, 0.125, 0.0625});
  }
  void give_bias(const Sizes& sizes) {
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) count *= size;
    bias = Owned(DType::float32, sizes, on_grid(count, 202));
    s.spec.bias = bias.tensor();
  }
  void give_sinks() {
    sinks = Owned(DType::float32, {4}, on_grid(4, 203));
    s.spec.sinks = sinks.tensor();
  }
  double value() const {
    const reference::Forward f = forward_truth(s);
    double sum = 0.0;
    for (std::size_t n = 0; n < f.o.size(); ++n) sum += f.o[n] * s.d_o[n];
    for (std::size_t n = 0; n < f.lse.size(); ++n) {
      if (!std::isinf(f.lse[n])) sum += f.lse[n] * s.d_lse[n];
    }
    return sum;
  }
  /// The derivative along one number, which `set` moves by an offset.
  double slope(const std::function<void(double)>& set) const {
    const auto at = [&](double offset) {
      set(offset);
      const double loss = value();
      set(0.0);
      return loss;
    };
    return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
  }
  void check_values(Values& values, const Values& gradient, const char* name) {
    ASSERT_EQ(values.size(), gradient.size()) << name;
    for (std::size_t n = 0; n < values.size(); ++n) {
      const double original = values[n];
      const double expected = slope([&](double offset) { values[n] = original + offset; });
      EXPECT_NEAR(gradient[n], expected, tolerance * std::max(1.0, std::abs(expected)))
          << name << "[" << n << "]";
    }
  }
  void check_tensor(Owned& owned, const Values& gradient, const char* name) {
    const Values original = owned.values();
    ASSERT_EQ(original.size(), gradient.size()) << name;
    for (std::size_t n = 0; n < original.size(); ++n) {
      const double expected = slope([&](double offset) {
        reference::store(owned.tensor(), static_cast<std::int64_t>(n), original[n] + offset);
      });
      EXPECT_NEAR(gradient[n], expected, tolerance * std::max(1.0, std::abs(expected)))
          << name << "[" << n << "]";
    }
  }
  void check() {
    const reference::Backward g = backward_truth(s);
    check_values(s.q, g.dq, "dQ");
    check_values(s.k, g.dk, "dK");
    check_values(s.v, g.dv, "dV");
    if (s.spec.bias.defined()) check_tensor(bias, g.dbias, "dbias");
    if (s.spec.sinks.defined()) check_tensor(sinks, g.dsinks, "dsinks");
  }
};

TEST(FiniteDifferences, Plain) { Loss().check(); }

TEST(FiniteDifferences, Causal) {
  for (const Causal causal : {Causal::bottom_right, Causal::top_left}) {
    Loss loss;
    loss.s.spec.causal = causal;
    loss.check();
  }
}

TEST(FiniteDifferences, CausalWithEmptyRowsAndSinks) {
  Loss loss;
  std::swap(loss.s.seq_q, loss.s.seq_k);
  loss.s.fill(204);
  loss.s.d_lse = on_grid(loss.s.rows(), 205);
  loss.s.spec.causal = Causal::bottom_right;
  loss.check();
  loss.give_sinks();
  loss.check();
}

TEST(FiniteDifferences, WindowAndSoftcap) {
  Loss loss;
  loss.s.spec.window = {.left = 1, .right = 1};
  loss.s.spec.softcap = 1.5;
  loss.check();
}

TEST(FiniteDifferences, AlibiMaskAndLengths) {
  Loss loss;
  loss.lengths = integers({5, 3});
  loss.mask =
      booleans({1, 1, 4, 5}, {true, true,  false, true, true, false, true, true, true, true,
                              true, false, true,  true, true, true,  true, true, true, false});
  loss.s.spec.key_lengths = loss.lengths.tensor();
  loss.s.spec.mask = loss.mask.tensor();
  loss.s.spec.alibi_slopes = loss.slopes.tensor();
  loss.check();
}

TEST(FiniteDifferences, BiasOfEveryShape) {
  for (const Sizes& sizes :
       std::vector<Sizes>{{2, 4, 4, 5}, {4, 5}, {2, 1, 1, 5}, {1, 4, 4, 1}, {1, 1, 1, 1}}) {
    Loss loss;
    loss.give_bias(sizes);
    loss.check();
  }
}

TEST(FiniteDifferences, Sinks) {
  Loss loss;
  loss.give_sinks();
  loss.check();
}

TEST(FiniteDifferences, Dropout) {
  Loss loss;
  loss.s.spec.dropout = {.p = 0.4, .seed = 9, .offset = 1};
  loss.give_bias({4, 5});
  loss.check();
}

TEST(FiniteDifferences, PackedSequences) {
  Loss loss;
  loss.s = trial(DType::float64, 1, 4, 2, 7, 9, 3, 2).fill(206);
  loss.s.packed = true;
  loss.s.d_lse = on_grid(loss.s.rows(), 207);
  loss.cu_q = integers({0, 3, 3, 6});
  loss.cu_k = integers({0, 4, 6, 8});
  loss.s.spec.cu_seqlens_q = loss.cu_q.tensor();
  loss.s.spec.cu_seqlens_k = loss.cu_k.tensor();
  loss.s.spec.causal = Causal::bottom_right;
  loss.give_bias({4, 7, 4});
  loss.check();
}

/// The score function works in float32: a coarser step keeps its rounding out of the quotient.
TEST(FiniteDifferences, ScoreFunction) {
  ScoreMod mod;
  mod.apply = [](const ScoreTile& t) {
    for (std::int64_t c = 0; c < t.cols; ++c)
      t.scores[c] += 0.5F * std::sin(t.scores[c] + static_cast<float>(t.j0 + c));
  };
  mod.derivative = [](const ScoreTile& t, float* grad) {
    for (std::int64_t c = 0; c < t.cols; ++c)
      grad[c] *= 1.0F + 0.5F * std::cos(t.scores[c] + static_cast<float>(t.j0 + c));
  };
  Loss loss;
  loss.step = 0x1p-5;
  loss.tolerance = 2e-5;
  loss.s.spec.score_mod = &mod;
  loss.give_bias({4, 5});
  loss.check();
}

TEST(FiniteDifferences, EverythingTogether) {
  Loss loss;
  loss.give_bias({4, 4, 5});
  loss.give_sinks();
  loss.lengths = integers({5, 4});
  loss.s.spec.key_lengths = loss.lengths.tensor();
  loss.s.spec.alibi_slopes = loss.slopes.tensor();
  loss.s.spec.causal = Causal::bottom_right;
  loss.s.spec.window.left = 3;
  loss.s.spec.softcap = 2.0;
  loss.s.spec.scale = -0.7;
  loss.s.spec.dropout = {.p = 0.25, .seed = 10, .offset = 2};
  loss.check();
}

}  // namespace
}  // namespace tilewise::contract
