/// Packed sequences and empty tensors: CONTRACT 8, 9.
#include <limits>

#include "contract/harness.h"

namespace tilewise::contract {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A packed trial with offsets of its own.
struct Packed {
  Owned cu_q, cu_k;
  Trial s;
  Packed(DType dtype, std::int64_t heads_q, std::int64_t heads_k,
         const std::vector<std::int64_t>& q_offsets, const std::vector<std::int64_t>& k_offsets,
         std::int64_t dim, DType offsets = DType::int32, std::int64_t rows_past_the_end = 0)
      : cu_q(integers(q_offsets, offsets)),
        cu_k(integers(k_offsets, offsets)),
        s(trial(dtype, 1, heads_q, heads_k, q_offsets.back() + rows_past_the_end,
                k_offsets.back() + rows_past_the_end, dim, dim)) {
    s.fill(40);
    s.packed = true;
    s.spec.cu_seqlens_q = cu_q.tensor();
    s.spec.cu_seqlens_k = cu_k.tensor();
  }
};

TEST_P(Forward, C070SegmentsWithoutQueries) {
  Packed c(DType::bfloat16, 9, 3, {0, 0, 1, 1, 2}, {0, 0, 3, 3, 8}, 64);
  c.s.spec.causal = Causal::bottom_right;
  expect_conforms(c.s, run(c.s));
}

TEST_P(Forward, C071FewerRowsThanSegments) {
  Packed c(DType::bfloat16, 21, 7, {0, 0, 0, 0, 1}, {0, 0, 0, 0, 1}, 120);
  const Results r = run(c.s);
  const Values v = Owned(DType::bfloat16, {7 * 120}, c.s.v).values();
  for (std::int64_t h = 0; h < 21; ++h) {
    EXPECT_EQ(slice(r.o, h * 120, h * 120 + 120), slice(v, h / 3 * 120, h / 3 * 120 + 120)) << h;
  }
}

TEST_P(Backward, C072SegmentsWithKeysAndNoQueries) {
  constexpr std::int64_t kDim = 64;
  Packed c(DType::float32, 4, 1, {0, 0, 75, 128, 128}, {0, 158, 267, 320, 512}, kDim);
  const Results r = run(c.s);
  for (const Values* gradient : {&r.dk, &r.dv}) {
    expect_all(slice(*gradient, 0, 158 * kDim), 0.0, "keys without queries");
    expect_all(slice(*gradient, 320 * kDim, 512 * kDim), 0.0, "keys without queries");
  }
  expect_gradients_conform(c.s, r);
}

TEST_P(Forward, C077SegmentsWithoutKeys) {
  Packed c(DType::float32, 2, 2, {0, 128, 256, 257}, {0, 0, 130, 130}, 32);
  const Results r = run(c.s);  // guard bands are checked
  for (std::int64_t h = 0; h < 2; ++h) {
    expect_all(slice(r.o, h * 257 * 32, (h * 257 + 128) * 32), 0.0, "O");
    expect_all(slice(r.lse, h * 257, h * 257 + 128), -kInfinity, "LSE");
    expect_all(slice(r.lse, h * 257 + 256, h * 257 + 257), -kInfinity, "LSE");
  }
  expect_conforms(c.s, r);
}

TEST_P(Backward, RowsPastTheLastOffset) {
  Packed c(DType::float32, 2, 1, {0, 20, 33}, {0, 11, 40}, 16, DType::int64, 9);
  c.s.d_lse = randn(c.s.rows(), 41);
  std::fill(c.s.d_o.begin() + 33 * 16, c.s.d_o.begin() + 42 * 16,
            std::numeric_limits<double>::quiet_NaN());
  const Results r = run(c.s);
  expect_all(slice(r.dq, 33 * 16, 42 * 16), 0.0, "dQ");
  expect_all(slice(r.dk, 40 * 16, 49 * 16), 0.0, "dK");
  expect_all(slice(r.dv, 40 * 16, 49 * 16), 0.0, "dV");
  expect_gradients_conform(c.s, r);
}

TEST_P(Forward, RowsPastTheLastOffset) {
  Packed c(DType::float32, 2, 1, {0, 20, 33}, {0, 11, 40}, 16, DType::int64, 9);
  const Results r = run(c.s);
  for (std::int64_t h = 0; h < 2; ++h) {
    expect_all(slice(r.o, (h * 42 + 33) * 16, (h * 42 + 42) * 16), 0.0, "O");
    expect_all(slice(r.lse, h * 42 + 33, h * 42 + 42), -kInfinity, "LSE");
  }
  expect_conforms(c.s, r);
}

/// C ABI callers have no other word for "any length" than a large number.
constexpr std::int64_t kBounds[] = {std::int64_t{1} << 30, std::int64_t{1} << 40,
                                    std::numeric_limits<std::int64_t>::max()};

template <class Run>
void expect_bounds_change_nothing(const Run& run) {
  Packed c(DType::float32, 1, 1, {0, 80}, {0, 80}, 16);
  const Results expected = run(c.s);
  for (const std::int64_t bound : kBounds) {
    c.s.spec.max_seqlen_q = c.s.spec.max_seqlen_k = bound;
    const Results r = run(c.s);
    EXPECT_EQ(r.bits, expected.bits) << bound;
    EXPECT_EQ(r.plan.peak_bytes(), expected.plan.peak_bytes()) << bound;
  }
}

TEST_P(Forward, BoundsBeyondTheRows) {
  expect_bounds_change_nothing([&](const Trial& s) { return run(s); });
}

TEST_P(Backward, BoundsBeyondTheRows) {
  expect_bounds_change_nothing([&](const Trial& s) { return run(s); });
}

/// Every segment as a call of its own, with all that a segment's indices decide: dropout, ALiBi,
/// window.
TEST_P(Forward, SegmentsEqualCallsOfTheirOwn) {
  constexpr std::int64_t kDim = 16;
  const std::vector<std::int64_t> q_offsets{0, 7, 40}, k_offsets{0, 19, 60};
  Packed c(DType::float32, 2, 1, q_offsets, k_offsets, kDim);
  Owned slopes(DType::float32, {2}, {0.25, 0.0625});
  c.s.spec.alibi_slopes = slopes.tensor();
  c.s.spec.window = {.left = 12, .right = 3};
  const Results r = run(c.s);
  for (std::size_t b = 0; b < 2; ++b) {
    const std::int64_t rows = q_offsets[b + 1] - q_offsets[b],
                       keys = k_offsets[b + 1] - k_offsets[b];
    Trial one = trial(DType::float32, 1, 2, 1, rows, keys, kDim, kDim);
    one.spec.alibi_slopes = slopes.tensor();
    one.spec.window = c.s.spec.window;
    one.k = slice(c.s.k, k_offsets[b] * kDim, k_offsets[b + 1] * kDim);
    one.v = slice(c.s.v, k_offsets[b] * kDim, k_offsets[b + 1] * kDim);
    one.q.clear();
    Values expected;
    for (std::int64_t h = 0; h < 2; ++h) {
      const std::int64_t begin = (h * 40 + q_offsets[b]) * kDim;
      const Values q = slice(c.s.q, begin, begin + rows * kDim),
                   o = slice(r.o, begin, begin + rows * kDim);
      one.q.insert(one.q.end(), q.begin(), q.end());
      expected.insert(expected.end(), o.begin(), o.end());
    }
    expect_near(run(one).o, expected, 2e-6, "O");
  }
}

TEST_P(Forward, C075EmptyTensors) {
  EXPECT_TRUE(run(trial(DType::float16, 7, 8, 8, 0, 0, 7, 7)).o.empty());
  EXPECT_TRUE(run(trial(DType::bfloat16, 0, 8, 8, 2, 2, 8, 8)).o.empty());
  EXPECT_TRUE(run(trial(DType::float32, 2, 2, 2, 0, 5, 8, 8)).o.empty());
  EXPECT_TRUE(run(trial(DType::float32, 2, 0, 0, 3, 5, 8, 8)).o.empty());
  EXPECT_THROW(run(trial(DType::float32, 1, 1, 1, 3, 3, 0, 8)), InvalidArgument);
}

TEST_P(Backward, C075EmptyTensors) {
  EXPECT_TRUE(run(trial(DType::bfloat16, 0, 8, 8, 2, 2, 8, 8)).dq.empty());
  const Results r = run(trial(DType::float32, 2, 2, 2, 0, 5, 8, 8));
  EXPECT_EQ(r.dk.size(), 2U * 2 * 5 * 8);
  expect_all(r.dk, 0.0, "dK without queries");
  expect_all(r.dv, 0.0, "dV without queries");
}

}  // namespace
}  // namespace tilewise::contract
