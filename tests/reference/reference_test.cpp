/// The oracle by itself: worked examples, and that its kernels and its yardstick say what they
/// promise. The contract room checks it against the golden values, other formulations and finite
/// differences.
#include "reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "problem/problem.h"
#include "reference/elements.h"
#include "reference/unfused.h"

namespace tilewise::reference {
namespace {

using Values = std::vector<double>;

Values randn(std::size_t count, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<double> normal;
  Values values(count);
  for (double& value : values) value = normal(bits);
  return values;
}

double largest_difference(const Values& a, const Values& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0.0;
  for (std::size_t n = 0; n < a.size(); ++n) largest = std::max(largest, std::abs(a[n] - b[n]));
  return largest;
}

/// (1, 2, 12, 8) queries and (1, 1, 17, 8) keys of any type.
struct Tensors {
  static constexpr std::int64_t kQueries = 2 * 12 * 8, kKeys = 17 * 8;
  DType dtype;
  std::vector<double> q, k, v, d_o, o, dq, dk, dv;
  std::vector<float> lse = std::vector<float>(24);

  explicit Tensors(DType type) : dtype(type) {
    for (auto* of_queries : {&q, &d_o, &o, &dq}) of_queries->resize(kQueries);
    for (auto* of_keys : {&k, &v, &dk, &dv}) of_keys->resize(kKeys);
    from_double(queries(q), randn(kQueries, 1));
    from_double(keys(k), randn(kKeys, 2));
    from_double(keys(v), randn(kKeys, 3));
    from_double(queries(d_o), randn(kQueries, 4));
  }
  // The vectors are only memory, large enough for any type.
  Tensor queries(Values& memory) const {
    return Tensor::contiguous(memory.data(), dtype, {1, 2, 12, 8});
  }
  Tensor keys(Values& memory) const {
    return Tensor::contiguous(memory.data(), dtype, {1, 1, 17, 8});
  }
  Tensor statistics() { return Tensor::contiguous(lse.data(), DType::float32, {1, 2, 12}); }

  ForwardTensors forward() {
    return {.q = queries(q),
            .k = keys(k),
            .v = keys(v),
            .o = queries(o),
            .lse = statistics(),
            .saved = {}};
  }
  BackwardTensors backward() {
    return {.q = queries(q),
            .k = keys(k),
            .v = keys(v),
            .o = queries(o),
            .lse = statistics(),
            .d_o = queries(d_o),
            .d_lse = {},
            .dq = queries(dq),
            .dk = keys(dk),
            .dv = keys(dv),
            .dbias = {},
            .dsinks = {},
            .saved = {}};
  }
};

const AttentionSpec kCausal{.scale = {}, .causal = Causal::bottom_right};

TEST(Reference, TheKernelsAreTheFunctionsRoundedOnce) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    Tensors t(dtype);
    const Forward f = forward_f64(make_problem(t.forward(), kCausal, Purpose::run));
    tilewise::forward(t.forward(), kCausal, {}, {.implementation = "reference", .kernel = {}});
    const Values o = to_double(t.queries(t.o));
    for (std::size_t n = 0; n < o.size(); ++n) EXPECT_EQ(o[n], round_to(dtype, f.o[n]));
    for (std::size_t n = 0; n < t.lse.size(); ++n)
      EXPECT_EQ(t.lse[n], static_cast<float>(f.lse[n]));

    const Backward b = backward_f64(make_problem(t.backward(), kCausal, Purpose::run));
    tilewise::backward(t.backward(), kCausal, {}, {.implementation = "reference", .kernel = {}});
    const Values dq = to_double(t.queries(t.dq)), dk = to_double(t.keys(t.dk)),
                 dv = to_double(t.keys(t.dv));
    for (std::size_t n = 0; n < dq.size(); ++n) EXPECT_EQ(dq[n], round_to(dtype, b.dq[n]));
    for (std::size_t n = 0; n < dk.size(); ++n) EXPECT_EQ(dk[n], round_to(dtype, b.dk[n]));
    for (std::size_t n = 0; n < dv.size(); ++n) EXPECT_EQ(dv[n], round_to(dtype, b.dv[n]));
  }
}

TEST(Reference, BackwardDoesNotTrustTheForwardItIsGiven) {
  Tensors t(DType::float32);
  const Problem problem = make_problem(t.backward(), kCausal, Purpose::run);
  const Backward before = backward_f64(problem);
  from_double(t.queries(t.o), Values(Tensors::kQueries, std::nan("")));
  t.lse.assign(24, std::nanf(""));
  EXPECT_EQ(backward_f64(problem).dq, before.dq);
}

/// Two keys by hand: S = (log 3, 0), so P = (3/4, 1/4).
TEST(Reference, TwoKeysByHand) {
  double q = std::log(3.0), d_o = 1.0, o = 0, dq = 0;
  Values k{1, 0}, v{4, 8}, dk(2), dv(2);
  float lse = 0;
  const auto vector = [](double* data, std::int64_t rows) {
    return Tensor::contiguous(data, DType::float64, {1, 1, rows, 1});
  };
  const Tensor statistics = Tensor::contiguous(&lse, DType::float32, {1, 1, 1});
  const BackwardTensors t{.q = vector(&q, 1),
                          .k = vector(k.data(), 2),
                          .v = vector(v.data(), 2),
                          .o = vector(&o, 1),
                          .lse = statistics,
                          .d_o = vector(&d_o, 1),
                          .d_lse = {},
                          .dq = vector(&dq, 1),
                          .dk = vector(dk.data(), 2),
                          .dv = vector(dv.data(), 2),
                          .dbias = {},
                          .dsinks = {},
                          .saved = {}};
  const ForwardTensors f{.q = t.q, .k = t.k, .v = t.v, .o = t.o, .lse = t.lse, .saved = {}};
  const Forward forward = forward_f64(make_problem(f, {}, Purpose::run));
  EXPECT_NEAR(forward.o[0], 5.0, 1e-15);
  EXPECT_NEAR(forward.lse[0], std::log(4.0), 1e-15);
  // dP = (4, 8), delta = 5, dS = (3/4 * -1, 1/4 * 3).
  const Backward backward = backward_f64(make_problem(t, {}, Purpose::run));
  EXPECT_NEAR(backward.dq[0], -0.75, 1e-15);
  EXPECT_NEAR(backward.dk[0], -0.75 * q, 1e-15);
  EXPECT_NEAR(backward.dk[1], 0.75 * q, 1e-15);
  EXPECT_NEAR(backward.dv[0], 0.75, 1e-15);
  EXPECT_NEAR(backward.dv[1], 0.25, 1e-15);
}

/// The yardstick errs by about the precision of its type: not by nothing, and not by a formula of
/// its own.
TEST(Unfused, ErrsByThePrecisionOfItsType) {
  const auto errors = [](DType dtype, Precision precision = Precision::exact) {
    Tensors t(dtype);
    AttentionSpec spec = kCausal;
    spec.precision = precision;
    const Problem f = make_problem(t.forward(), spec, Purpose::run);
    const Problem b = make_problem(t.backward(), spec, Purpose::run);
    const Backward truth = backward_f64(b), unfused = unfused_backward(b);
    return Values{largest_difference(forward_f64(f).o, unfused_forward(f).o),
                  largest_difference(truth.dq, unfused.dq),
                  largest_difference(truth.dk, unfused.dk),
                  largest_difference(truth.dv, unfused.dv)};
  };
  const auto expect_between = [](const Values& values, double low, double high) {
    for (const double value : values) {
      EXPECT_GT(value, low);
      EXPECT_LT(value, high);
    }
  };
  expect_between(errors(DType::float32), 1e-9, 5e-6);
  expect_between(errors(DType::float16), 1e-5, 5e-3);
  expect_between(errors(DType::float32, Precision::tf32), 1e-5, 5e-3);
  expect_between(errors(DType::bfloat16), 1e-4, 5e-2);
}

/// However many keys a row has, what rounding its query does to their scores does not average out.
TEST(Unfused, Tf32RoundsAQueryForAllKeysAlike) {
  Tensors t(DType::float32);
  const double held = 1.0 + 0x1p-10, given = held + 0x1p-12;
  from_double(t.queries(t.q), Values(Tensors::kQueries, given));
  from_double(t.keys(t.k), Values(Tensors::kKeys, 1.0));
  AttentionSpec spec;
  spec.precision = Precision::tf32;
  const Problem problem = make_problem(t.forward(), spec, Purpose::run);
  const Forward truth = forward_f64(problem), unfused = unfused_forward(problem);
  const double shift = std::sqrt(8.0) * (given - held);
  for (std::size_t i = 0; i < truth.lse.size(); ++i) {
    EXPECT_NEAR(truth.lse[i] - unfused.lse[i], shift, 1e-6);
  }
  EXPECT_LT(largest_difference(forward_f64(problem).o, unfused.o), 5e-3);
}

TEST(Unfused, AFiniteScoreThatTheTypeCannotHoldStaysFinite) {
  Tensors t(DType::float16);
  from_double(t.queries(t.q), Values(Tensors::kQueries, 300.0));
  from_double(t.keys(t.k), Values(Tensors::kKeys, 300.0));
  const Problem problem = make_problem(t.forward(), {}, Purpose::run);
  EXPECT_LT(largest_difference(forward_f64(problem).o, unfused_forward(problem).o), 0.01);
}

}  // namespace
}  // namespace tilewise::reference
