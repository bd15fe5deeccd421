/// What holds for every problem, on random ones (RapidCheck).
#include <rapidcheck.h>

#include <cmath>
#include <numeric>

#include "contract/harness.h"
#include "problem/philox.h"

namespace tilewise::contract {
namespace {

/// A small problem of random sizes, masks and options.
struct RandomProblem {
  Trial s;
  Owned bias, slopes, sinks;
  RandomProblem() {
    const auto size = [](int low, int high) {
      return static_cast<std::int64_t>(*rc::gen::inRange(low, high));
    };
    const std::int64_t heads_k = size(1, 3);
    s = trial(DType::float32, size(1, 3), heads_k * size(1, 3), heads_k, size(1, 40), size(1, 40),
              size(1, 20), size(1, 20));
    s.fill(*rc::gen::arbitrary<std::uint32_t>());
    if (*rc::gen::arbitrary<bool>())
      s.spec.causal = *rc::gen::element(Causal::bottom_right, Causal::top_left);
    if (*rc::gen::arbitrary<bool>()) s.spec.window.left = size(0, 30);
    if (*rc::gen::arbitrary<bool>()) s.spec.softcap = 2.0;
    if (*rc::gen::arbitrary<bool>()) {
      slopes = Owned(DType::float32, {s.heads_q}, randn(s.heads_q, 1, 0.1));
      s.spec.alibi_slopes = slopes.tensor();
    }
    if (*rc::gen::arbitrary<bool>()) {
      bias = Owned(DType::float32, {s.seq_q, s.seq_k}, randn(s.seq_q * s.seq_k, 2));
      s.spec.bias = bias.tensor();
    }
  }
  RandomProblem(const RandomProblem&) = delete;
  RandomProblem& operator=(const RandomProblem&) = delete;
};

void check(const char* what, const std::function<void()>& property) {
  EXPECT_TRUE(rc::check(what, property));
}

bool near(const Values& a, const Values& b, double tolerance) {
  if (a.size() != b.size()) return false;
  for (std::size_t n = 0; n < a.size(); ++n) {
    if (a[n] != b[n] && !(std::abs(a[n] - b[n]) <= tolerance)) return false;
  }
  return true;
}

TEST_P(Forward, PropertyRowsOfPSumToOne) {
  check("V = 1 gives O = 1 where a key is seen, and 0 elsewhere", [&] {
    RandomProblem p;
    p.s.v = constant(static_cast<std::int64_t>(p.s.v.size()), 1.0);
    const Results r = run(p.s);
    for (std::size_t n = 0; n < r.o.size(); ++n) {
      const bool empty = std::isinf(r.lse[n / static_cast<std::size_t>(p.s.dim_v)]);
      RC_ASSERT(std::abs(r.o[n] - (empty ? 0.0 : 1.0)) <= 1e-5);
    }
  });
}

/// Rows of a (B, H, S, D) array in another order of S.
Values permuted(const Values& values, const std::vector<std::size_t>& order, std::int64_t dim) {
  Values result(values.size());
  const std::size_t rows = order.size(), width = static_cast<std::size_t>(dim);
  for (std::size_t row = 0; row < values.size() / width; ++row) {
    const std::size_t from = row / rows * rows + order[row % rows];
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(from * width), width,
                result.begin() + static_cast<std::ptrdiff_t>(row * width));
  }
  return result;
}

TEST_P(Forward, PropertyTheOrderOfKeysChangesNothing) {
  check("keys, values and bias permuted together", [&] {
    RandomProblem p;
    p.s.spec.causal = Causal::none;
    p.s.spec.window = {};
    p.s.spec.alibi_slopes = {};
    const Results r = run(p.s);
    std::vector<std::size_t> order(static_cast<std::size_t>(p.s.seq_k));
    std::iota(order.begin(), order.end(), std::size_t{0});
    const std::size_t turn = *rc::gen::inRange<std::size_t>(0, order.size());
    std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(turn), order.end());
    std::reverse(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(order.size() / 2));
    p.s.k = permuted(p.s.k, order, p.s.dim);
    p.s.v = permuted(p.s.v, order, p.s.dim_v);
    Owned bias;
    if (p.s.spec.bias.defined()) {
      // Columns of the bias are keys: an array of rows of one element each.
      bias = Owned(DType::float32, {p.s.seq_q, p.s.seq_k}, permuted(p.bias.values(), order, 1));
      p.s.spec.bias = bias.tensor();
    }
    const Results other = run(p.s);
    RC_ASSERT(near(r.o, other.o, 2e-5));
    RC_ASSERT(near(r.lse, other.lse, 2e-5));
  });
}

/// C103: two parts of the keys, each with its own LSE, merged; the second may be empty for some
/// rows.
TEST_P(Forward, PropertySplitKeysMergeToTheWhole) {
  check("merge(first keys, other keys) = all keys", [&] {
    RandomProblem p;
    p.s.spec.causal = Causal::none;  // a split moves the diagonal
    p.s.spec.window = {};
    p.s.spec.alibi_slopes = {};
    const Results whole = run(p.s);
    const std::int64_t cut = *rc::gen::inRange<std::int64_t>(0, p.s.seq_k + 1);
    const auto part = [&](std::int64_t begin, std::int64_t end) {
      Trial s = p.s;
      s.seq_k = end - begin;
      s.k.clear();
      s.v.clear();
      for (std::int64_t head = 0; head < s.batch * s.heads_k; ++head) {
        const std::int64_t at = head * p.s.seq_k;
        const Values k = slice(p.s.k, (at + begin) * s.dim, (at + end) * s.dim);
        const Values v = slice(p.s.v, (at + begin) * s.dim_v, (at + end) * s.dim_v);
        s.k.insert(s.k.end(), k.begin(), k.end());
        s.v.insert(s.v.end(), v.begin(), v.end());
      }
      if (s.spec.bias.defined()) {
        s.spec.bias.data = static_cast<float*>(s.spec.bias.data) + begin;
        s.spec.bias.sizes[1] = end - begin;
      }
      return run(s);
    };
    const Results a = part(0, cut), b = part(cut, p.s.seq_k);
    const Sizes o_sizes{p.s.batch, p.s.heads_q, p.s.seq_q, p.s.dim_v},
        lse_sizes{p.s.batch, p.s.heads_q, p.s.seq_q};
    Owned o(DType::float32, o_sizes, a.o), lse(DType::float32, lse_sizes, a.lse);
    Owned o_other(DType::float32, o_sizes, b.o), lse_other(DType::float32, lse_sizes, b.lse);
    merge(o.tensor(), lse.tensor(), o_other.tensor(), lse_other.tensor());
    RC_ASSERT(near(o.values(), whole.o, 1e-5));
    RC_ASSERT(near(lse.values(), whole.lse, 1e-5));
  });
}

TEST(Merge, NamesWhatIsMissing) {
  Owned o(DType::float32, {1, 1, 2, 3}, constant(6, 1.0));
  Owned lse(DType::float32, {1, 1, 2}, constant(2, 0.0));
  const auto told = [&](const char* name, Tensor of, Tensor statistics) {
    try {
      merge(o.tensor(), lse.tensor(), of, statistics);
    } catch (const InvalidArgument& error) {
      return std::string(error.what()).rfind(name, 0) == 0;
    }
    return false;
  };
  Tensor without = o.tensor(), none = lse.tensor();
  without.data = none.data = nullptr;
  EXPECT_TRUE(told("o_other", without, lse.tensor()));
  EXPECT_TRUE(told("lse_other", o.tensor(), none));
  EXPECT_TRUE(told("lse_other", o.tensor(), {}));
}

/// A part without keys leaves the other's bits, the sign of a zero among them.
TEST(Merge, APartWithoutKeysChangesNoBit) {
  const Sizes sizes{1, 1, 2, 3};
  const Values full{-0.0, 1.5, -2.0, 0.0, -0.0, 7.0}, nothing(6, 0.0);
  const Values lse_full{0.25, -3.0}, lse_nothing(2, -HUGE_VAL);
  for (const bool first : {true, false}) {
    Owned o(DType::float32, sizes, first ? full : nothing);
    Owned lse(DType::float32, {1, 1, 2}, first ? lse_full : lse_nothing);
    Owned o_other(DType::float32, sizes, first ? nothing : full);
    Owned lse_other(DType::float32, {1, 1, 2}, first ? lse_nothing : lse_full);
    merge(o.tensor(), lse.tensor(), o_other.tensor(), lse_other.tensor());
    EXPECT_EQ(lse.values(), lse_full);
    const Values merged = o.values();
    for (std::size_t n = 0; n < full.size(); ++n) {
      EXPECT_EQ(merged[n], full[n]);
      EXPECT_EQ(std::signbit(merged[n]), std::signbit(full[n])) << n << (first ? " a" : " b");
    }
  }
}

/// (B2): rowsum(dO * O) = rowsum(P * dP). With V = 1, forward's O is P itself, so that both sides
/// come from forward.
TEST_P(Forward, PropertyDeltaFromOutputsEqualsDeltaFromProbabilities) {
  check("rowsum(dO * O) = rowsum(P * dP)", [&] {
    RandomProblem p;
    p.s.spec.dropout = {.p = *rc::gen::element(0.0, 0.3), .seed = 1, .offset = 2};
    const Results r = run(p.s);
    Trial identity = p.s;
    identity.dim_v = p.s.seq_k;
    identity.v = constant(p.s.batch * p.s.heads_k * p.s.seq_k * p.s.seq_k, 0.0);
    for (std::int64_t row = 0; row < p.s.batch * p.s.heads_k * p.s.seq_k; ++row) {
      identity.v[static_cast<std::size_t>(row * p.s.seq_k + row % p.s.seq_k)] = 1.0;
    }
    const Values dropped_p = run(identity).o;  // Z * P
    const Sizes o_sizes{p.s.batch, p.s.heads_q, p.s.seq_q, p.s.dim_v};
    for (std::int64_t row = 0; row < p.s.rows(); ++row) {
      const std::int64_t key_head = row / p.s.seq_q / (p.s.heads_q / p.s.heads_k);
      double from_o = 0.0, from_p = 0.0;
      for (std::int64_t d = 0; d < p.s.dim_v; ++d) {
        const auto at = static_cast<std::size_t>(row * p.s.dim_v + d);
        from_o += p.s.d_o[at] * r.o[at];
      }
      for (std::int64_t j = 0; j < p.s.seq_k; ++j) {
        double dov = 0.0;  // P_ij dP_ij = (Z P)_ij (dO V^T)_ij
        for (std::int64_t d = 0; d < p.s.dim_v; ++d) {
          dov += p.s.d_o[static_cast<std::size_t>(row * p.s.dim_v + d)] *
                 p.s.v[static_cast<std::size_t>((key_head * p.s.seq_k + j) * p.s.dim_v + d)];
        }
        from_p += dropped_p[static_cast<std::size_t>(row * p.s.seq_k + j)] * dov;
      }
      RC_ASSERT(std::abs(from_o - from_p) <= 1e-4);
    }
  });
}

TEST_P(Forward, PropertyConformsToTheReference) {
  check("forward is within the tolerance of CONTRACT 18", [&] {
    RandomProblem p;
    expect_conforms(p.s, run(p.s));
    RC_ASSERT(!testing::Test::HasFailure());
  });
}

TEST_P(Backward, PropertyConformsToTheReference) {
  check("backward is within the tolerance of CONTRACT 18", [&] {
    RandomProblem p;
    if (*rc::gen::arbitrary<bool>()) {
      p.sinks = Owned(DType::float32, {p.s.heads_q}, randn(p.s.heads_q, 3));
      p.s.spec.sinks = p.sinks.tensor();
    }
    if (*rc::gen::arbitrary<bool>()) p.s.d_lse = randn(p.s.rows(), 4);
    p.s.spec.dropout = {.p = *rc::gen::element(0.0, 0.3), .seed = 1, .offset = 2};
    expect_gradients_conform(p.s, run(p.s));
    RC_ASSERT(!testing::Test::HasFailure());
  });
}

/// Gradients are linear in dO, and the sum over keys of dS is 0: adding a constant to all keys
/// changes no probability.
TEST_P(Backward, PropertyACommonShiftOfTheKeysHasNoGradient) {
  check("sum_j dK_j is 0 without a cap, for one query direction", [&] {
    RandomProblem p;
    p.s.spec.softcap = 0.0;
    const Results r = run(p.s);
    // (B9): sum_j dK_j = scale * sum_i q_i sum_j dS_ij, and each row of dS sums to 0.
    const Trial& s = p.s;
    for (std::int64_t head = 0; head < s.batch * s.heads_k; ++head) {
      for (std::int64_t d = 0; d < s.dim; ++d) {
        double sum = 0.0;
        for (std::int64_t j = 0; j < s.seq_k; ++j) {
          sum += r.dk[static_cast<std::size_t>((head * s.seq_k + j) * s.dim + d)];
        }
        RC_ASSERT(std::abs(sum) <= 2e-4);
      }
    }
  });
}

}  // namespace
}  // namespace tilewise::contract
