/// Each verb on the CPU: its backward against finite differences in float64, and float32 against
/// float64.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "layers/cpu_ops.h"
#include "layers/pools.h"

namespace tilewise::asam {
namespace {

template <class T>
using Arrays = std::vector<std::vector<T>>;

template <class T>
std::vector<T> as(const std::vector<double>& x) {
  return {x.begin(), x.end()};
}

/// A verb with its backward. inputs: how many elements each has; forward(ops, in, out) fills out,
/// which begins as NaN; backward(ops, in, out, d_out, d_in) fills d_in, which begins as 0.
template <class Forward, class Backward>
void check(const std::vector<std::int64_t>& inputs, std::int64_t outputs, const Forward& forward,
           const Backward& backward, std::uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  const auto draw = [&](std::int64_t count) {
    std::vector<double> x(static_cast<std::size_t>(count));
    for (double& value : x) value = normal(random);
    return x;
  };
  const std::unique_ptr<Executor> pool = make_thread_pool(2);
  CpuOps<double> ops(*pool);
  CpuOps<float> ops32(*pool);

  Arrays<double> in, directions, d_in;
  Arrays<float> in32, d_in32;
  for (const std::int64_t count : inputs) {
    in.push_back(draw(count));
    directions.push_back(draw(count));
    d_in.emplace_back(static_cast<std::size_t>(count));
    in32.push_back(as<float>(in.back()));
    in.back() = as<double>(as<double>(std::vector<double>(in32.back().begin(), in32.back().end())));
    d_in32.emplace_back(static_cast<std::size_t>(count));
  }
  const std::vector<double> weights = draw(outputs);
  std::vector<double> out(static_cast<std::size_t>(outputs), NAN);
  std::vector<float> out32(static_cast<std::size_t>(outputs), NAN);
  forward(ops, in, out);
  backward(ops, in, out, weights, d_in);
  forward(ops32, in32, out32);
  backward(ops32, in32, out32, as<float>(weights), d_in32);

  const auto loss = [&](double step) {
    Arrays<double> moved = in;
    for (std::size_t n = 0; n < moved.size(); ++n) {
      for (std::size_t i = 0; i < moved[n].size(); ++i) moved[n][i] += step * directions[n][i];
    }
    std::vector<double> y(static_cast<std::size_t>(outputs), NAN);
    forward(ops, moved, y);
    double sum = 0.0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * weights[i];
    return sum;
  };
  constexpr double kStep = 1e-6;
  double slope = 0.0, size = 1.0;
  for (std::size_t n = 0; n < in.size(); ++n) {
    for (std::size_t i = 0; i < in[n].size(); ++i) {
      slope += d_in[n][i] * directions[n][i];
      size += std::abs(d_in[n][i] * directions[n][i]);
      EXPECT_NEAR(d_in32[n][i], d_in[n][i], 2e-4 * (1.0 + std::abs(d_in[n][i])))
          << "input " << n << ", element " << i;
    }
  }
  EXPECT_NEAR((loss(kStep) - loss(-kStep)) / (2.0 * kStep), slope, 1e-6 * size);
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_NEAR(out32[i], out[i], 2e-5 * (1.0 + std::abs(out[i]))) << "output " << i;
  }
}

TEST(Verbs, Linear) {
  const LinearShape s{13, 7, 5};
  check(
      {13 * 7, 5 * 7}, 13 * 5,
      [&](auto& ops, auto& in, auto& y) {
        ops.linear(in[0].data(), in[1].data(), y.data(), {}, s);
      },
      [&](auto& ops, auto& in, auto&, const auto& dy, auto& d) {
        ops.linear_backward(in[0].data(), in[1].data(), dy.data(), d[0].data(), d[1].data(), s);
      });
}

TEST(Verbs, Activations) {
  const Shape s{9, 11};
  for (const Activation f :
       {Activation::none, Activation::gelu, Activation::relu, Activation::sigmoid}) {
    check(
        {99, 11}, 99,
        [&](auto& ops, auto& in, auto& y) {
          auto z = in[0];
          ops.activate(z.data(), in[1].data(), y.data(), f, s);
        },
        [&](auto& ops, auto& in, auto&, const auto& dy, auto& d) {
          auto z = in[0];
          auto unread = in[0];
          ops.activate(z.data(), in[1].data(), unread.data(), f, s);
          ops.activate_backward(z.data(), dy.data(), d[0].data(), d[1].data(), f, s);
        });
  }
}

/// gelu_backward gives the gradient, and what dropout and activation had given.
TEST(Verbs, GeluBackward) {
  const Shape s{9, 11};
  for (const double p : {0.0, 0.25}) {
    const Drop drop{.p = p, .seed = 7, .site = 3, .draw = 11, .first = 5};
    check(
        {99}, 99,
        [&](auto& ops, auto& in, auto& u) {
          auto z = in[0];
          ops.activate(z.data(), nullptr, u.data(), Activation::gelu, s);
          ops.drop_add(nullptr, u.data(), u.data(), drop, s);
        },
        [&](auto& ops, auto& in, auto& u, const auto& du, auto& d) {
          auto again = du, z = in[0];
          ops.gelu_backward(z.data(), again.data(), d[0].data(), drop, s);
          EXPECT_EQ(again, u);
          auto in_place = du;
          ops.gelu_backward(z.data(), in_place.data(), z.data(), drop, s);
          EXPECT_EQ(z, d[0]);
        });
  }
}

TEST(Verbs, NormaliseIsTheNormAgain) {
  const Shape s{6, 19};
  CpuOps<float> ops(default_executor());
  std::vector<float> x(6 * 19), gamma(19), beta(19), y(x.size()), again(x.size()), statistics(12);
  std::mt19937 random(3);
  for (std::vector<float>* of : {&x, &gamma, &beta}) {
    for (float& value : *of) value = static_cast<float>(random() % 1000) * 0.01F;
  }
  ops.layer_norm(x.data(), gamma.data(), beta.data(), y.data(), statistics.data(), s);
  ops.normalise(x.data(), gamma.data(), beta.data(), statistics.data(), again.data(), s);
  EXPECT_EQ(again, y);
}

TEST(Verbs, LayerNorm) {
  const Shape s{6, 19};
  check(
      {6 * 19, 19, 19}, 6 * 19,
      [&](auto& ops, auto& in, auto& y) {
        auto statistics = y;
        ops.layer_norm(in[0].data(), in[1].data(), in[2].data(), y.data(), statistics.data(), s);
      },
      [&](auto& ops, auto& in, auto& y, const auto& dy, auto& d) {
        auto unread = y, statistics = y;
        ops.layer_norm(in[0].data(), in[1].data(), in[2].data(), unread.data(), statistics.data(),
                       s);
        ops.layer_norm_backward(in[0].data(), in[1].data(), statistics.data(), dy.data(),
                                d[0].data(), d[1].data(), d[2].data(), s);
      });
}

TEST(Verbs, DropAddDropsTheShareAndTheBackwardDropsTheSame) {
  const Shape s{64, 33};
  const Drop drop{.p = 0.25, .seed = 7, .site = 3, .draw = 11};
  check(
      {64 * 33, 64 * 33}, 64 * 33,
      [&](auto& ops, auto& in, auto& y) {
        ops.drop_add(in[0].data(), in[1].data(), y.data(), drop, s);
      },
      [&](auto& ops, auto&, auto&, const auto& dy, auto& d) {
        d[0] = dy;
        ops.drop_add(nullptr, dy.data(), d[1].data(), drop, s);
      });
  CpuOps<float> ops(default_executor());
  const std::vector<float> ones(64 * 33, 1.0F);
  std::vector<float> y(ones.size());
  ops.drop_add(nullptr, ones.data(), y.data(), drop, s);
  std::vector<float> part(20 * 33);  // rows by their number in the whole
  ops.drop_add(nullptr, ones.data(), part.data(), drop.from(30), {20, 33});
  EXPECT_TRUE(std::equal(part.begin(), part.end(), y.begin() + 30 * 33));
  const auto dropped = std::count(y.begin(), y.end(), 0.0F);
  EXPECT_NEAR(static_cast<double>(dropped) / static_cast<double>(y.size()), 0.25, 0.04);
  for (const float value : y) EXPECT_TRUE(value == 0.0F || value == 1.0F / 0.75F);
}

/// One window, ragged windows, fewer tokens than bins and more.
class Pools : public testing::TestWithParam<TokenShape> {};

TEST_P(Pools, Bins) {
  const TokenShape s = GetParam();
  const std::int64_t bins = pool_bin_count(s.dim);
  const auto room = static_cast<std::size_t>(s.batch * (s.dim + 2 * s.tokens + 3 * bins));
  check(
      {s.elems()}, s.batch * bins,
      [&](auto& ops, auto& in, auto& y) {
        auto kept = y;
        kept.resize(room);
        ops.pool_bins(in[0].data(), y.data(), kept.data(), s);
      },
      [&](auto& ops, auto& in, auto& y, const auto& dy, auto& d) {
        auto unread = y, kept = y;
        kept.resize(room);
        ops.pool_bins(in[0].data(), unread.data(), kept.data(), s);
        ops.pool_bins_backward(in[0].data(), kept.data(), dy.data(), d[0].data(), s);
      });
}

TEST_P(Pools, Windows) {
  const TokenShape s = GetParam();
  check(
      {s.elems()}, s.batch * kWindowFeatures * s.dim,
      [&](auto& ops, auto& in, auto& y) { ops.pool_windows(in[0].data(), nullptr, y.data(), s); },
      [&](auto& ops, auto& in, auto& y, const auto& dy, auto& d) {
        ops.pool_windows_backward(in[0].data(), nullptr, y.data(), dy.data(), d[0].data(), s);
      });
}

INSTANTIATE_TEST_SUITE_P(Shapes, Pools,
                         testing::Values(TokenShape{1, 1, 8}, TokenShape{2, 70, 9},
                                         TokenShape{1, 64, 4}, TokenShape{3, 129, 5}));

TEST(Verbs, Gate) {
  const Shape s{4, 3};
  check(
      {12, 12, 3, 1}, 12,
      [&](auto& ops, auto& in, auto& g) {
        ops.gate(in[0].data(), in[1].data(), in[2].data(), in[3].data(), g.data(), s);
      },
      [&](auto& ops, auto& in, auto& g, const auto& dg, auto& d) {
        ops.gate_backward(in[0].data(), in[1].data(), in[2].data(), in[3].data(), g.data(),
                          dg.data(), d[0].data(), d[1].data(), d[2].data(), d[3].data(), s);
      });
}

TEST(Verbs, Mix) {
  const HeadShape s{2, 5, 3, 4};
  const std::int64_t rows = s.rows() * s.heads;
  check(
      {2 * rows * s.dim, s.batch * s.heads}, rows * s.dim,
      [&](auto& ops, auto& in, auto& a) { ops.mix(in[0].data(), in[1].data(), a.data(), s); },
      [&](auto& ops, auto& in, auto&, const auto& da, auto& d) {
        ops.mix_backward(in[0].data(), in[1].data(), da.data(), d[0].data(), d[1].data(), nullptr,
                         s);
      });
}

TEST(Verbs, Twice) {
  const HeadShape s{2, 5, 3, 4};
  const std::int64_t inner = s.heads * s.dim;
  check(
      {s.rows() * 3 * inner}, s.rows() * 2 * inner,
      [&](auto& ops, auto& in, auto& q2) { ops.twice(in[0].data(), q2.data(), s); },
      [&](auto& ops, auto&, auto&, const auto& d2, auto& d) {
        ops.twice_backward(d2.data(), d[0].data(), s);
      });
}

TEST(Verbs, Embedding) {
  const std::vector<std::int32_t> ids = {3, 0, 3, 1};
  check(
      {4 * 6}, 4 * 6,
      [&](auto& ops, auto& in, auto& y) {
        ops.embed(ids.data(), in[0].data(), y.data(), {4, 6});
      },
      [&](auto& ops, auto&, auto&, const auto& dy, auto& d) {
        ops.embed_backward(ids.data(), dy.data(), d[0].data(), {4, 6});
      });
}

TEST(Verbs, ReadOut) {
  const TokenShape s{3, 7, 5};
  for (const Readout readout : {Readout::mean, Readout::last}) {
    check(
        {s.elems()}, s.batch * s.dim,
        [&](auto& ops, auto& in, auto& y) {
          ops.read_out(in[0].data(), nullptr, y.data(), readout, s);
        },
        [&](auto& ops, auto&, auto&, const auto& dy, auto& d) {
          ops.read_out_backward(dy.data(), nullptr, d[0].data(), readout, s);
        });
  }
}

TEST(Verbs, CrossEntropyIsTheMeanAndItsGradientIsScaled) {
  const Shape s{5, 4};
  const std::vector<std::int32_t> labels = {0, 3, 1, 1, 2};
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::vector<double> logits(20), d(20), unread(20);
  for (double& x : logits) x = 3.0 * normal(random);
  CpuOps<double> ops(default_executor());
  TrainState state{.scale = 8.0F};
  ops.cross_entropy(logits.data(), labels.data(), d.data(), &state, s);
  const auto loss = [&](const std::vector<double>& x) {
    double sum = 0.0;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      double total = 0.0;
      for (std::size_t j = 0; j < 4; ++j) total += std::exp(x[4 * i + j]);
      sum += std::log(total) - x[4 * i + static_cast<std::size_t>(labels[i])];
    }
    return sum / 5.0;
  };
  EXPECT_NEAR(state.loss, loss(logits), 1e-6);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    std::vector<double> up = logits, down = logits;
    up[i] += 1e-5;
    down[i] -= 1e-5;
    EXPECT_NEAR(d[i] / 8.0, (loss(up) - loss(down)) / 2e-5, 1e-8);
  }
}

TEST(Verbs, CrossEntropyOfLargeLogits) {
  const std::vector<float> logits = {1e4F, -1e4F};
  std::vector<float> d(2);
  const std::int32_t label = 1;
  TrainState state;
  CpuOps<float> ops(default_executor());
  ops.cross_entropy(logits.data(), &label, d.data(), &state, {1, 2});
  EXPECT_FLOAT_EQ(state.loss, 2e4F);
  EXPECT_FLOAT_EQ(d[0], 1.0F);
}

}  // namespace
}  // namespace tilewise::asam
