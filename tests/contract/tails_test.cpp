/// What lies beyond a length never matters: CONTRACT 10. Outputs and workspace hold NaN before
/// every call, and guard bands of NaN lie around every tensor (see the harness).
#include <cmath>
#include <limits>

#include "contract/harness.h"

namespace tilewise::contract {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST_P(Forward, C043TailTiles) {
  for (const auto& [seq_q, seq_k] :
       {std::pair{1, 1}, {9, 9}, {12, 12}, {63, 63}, {65, 65}, {201, 103}}) {
    const Trial s = trial(DType::float32, 1, 2, 1, seq_q, seq_k, 128, 128).fill(20);
    expect_conforms(s, run(s));
  }
}

TEST_P(Forward, C044FewQueriesAndOddKeyLengths) {
  for (const std::int64_t seq_q : {1, 3, 8}) {
    for (const std::int64_t seq_k : {31, 32, 33, 38, 39, 70}) {
      for (const std::int64_t dim : {64, 96}) {
        const Trial s = trial(DType::bfloat16, 1, 1, 1, seq_q, seq_k, dim, dim).fill(21);
        const Results r = run(s);
        expect_conforms(s, r);
        EXPECT_EQ(r.bits, run(s).bits) << "CONTRACT 14";
      }
    }
  }
}

/// K and V hold NaN in every row past an entry's length.
void poison_past_lengths(Trial& s, const std::vector<std::int64_t>& lengths) {
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads_k; ++h) {
      for (std::int64_t j = lengths[static_cast<std::size_t>(b)]; j < s.seq_k; ++j) {
        const std::int64_t row = (b * s.heads_k + h) * s.seq_k + j;
        std::fill_n(s.k.begin() + row * s.dim, s.dim, kNan);
        std::fill_n(s.v.begin() + row * s.dim_v, s.dim_v, kNan);
      }
    }
  }
}

TEST_P(Forward, C046KeysPastTheLength) {
  Trial s = trial(DType::float16, 2, 1, 1, 1, 3, 64, 64).fill(22);
  s.q = constant(2 * 64, 0.5);
  const Results clean = [&] {
    Trial one = trial(DType::float16, 1, 1, 1, 1, 1, 64, 64);
    one.q = slice(s.q, 0, 64);
    one.k = slice(s.k, 0, 64);
    one.v = slice(s.v, 0, 64);
    return run(one);
  }();
  poison_past_lengths(s, {1, 3});
  Owned lengths = integers({1, 3});
  s.spec.key_lengths = lengths.tensor();
  const Results r = run(s);
  expect_finite(r.o, "O");
  expect_finite(r.lse, "LSE");
  expect_near(slice(r.o, 0, 64), clean.o, 0.0, "O of the short entry");
  expect_conforms(s, r);
}

/// Lengths 32, 96, 0 and 48 of a cache of 128; causal, so that the diagonal must follow the
/// lengths.
struct Cache {
  Owned lengths = integers({32, 96, 0, 48});
  Trial s = trial(DType::float32, 4, 4, 2, 5, 128, 32, 48).fill(23);
  Cache() {
    poison_past_lengths(s, {32, 96, 0, 48});
    s.spec.key_lengths = lengths.tensor();
    s.spec.causal = Causal::bottom_right;
  }
};

TEST_P(Forward, C046ACacheOfManyLengths) {
  Cache c;
  const Results r = run(c.s);
  expect_finite(r.o, "O");
  expect_conforms(c.s, r);
}

TEST_P(Backward, C046ACacheOfManyLengths) {
  Cache c;
  const Results r = run(c.s);
  for (const Values* gradient : {&r.dq, &r.dk, &r.dv}) expect_finite(*gradient, "gradient");
  expect_gradients_conform(c.s, r);
  expect_all(slice(r.dk, 32 * 32, 128 * 32), 0.0, "dK past the length");
}

TEST_P(Forward, C047ANanInAMaskedKey) {
  for (const double bad : {kNan, 1e10}) {
    Trial s = trial(DType::float32, 1, 1, 1, 2, 2, 4, 4);
    s.q = s.k = s.v = counting(8);
    s.k[4] = bad;
    Owned mask = booleans({2, 2}, {true, false, true, false});
    s.spec.mask = mask.tensor();
    expect_near(run(s).o, {0, 1, 2, 3, 0, 1, 2, 3}, 0.0, "O");
  }
}

struct PackedTails {
  Owned cu = integers({0, 100, 101, 228, 357});
  Trial s = trial(DType::float32, 1, 4, 2, 357, 357, 32, 32).fill(24);
  PackedTails() {
    s.packed = true;
    s.spec.cu_seqlens_q = cu.tensor();
    s.spec.cu_seqlens_k = cu.tensor();
    s.spec.causal = Causal::bottom_right;
  }
};

TEST_P(Forward, C050PackedTails) {
  PackedTails c;
  expect_conforms(c.s, run(c.s));
}

TEST_P(Backward, C050PackedTails) {
  PackedTails c;
  expect_gradients_conform(c.s, run(c.s));
}

TEST_P(Backward, C051LengthsThatAreNotNice) {
  for (const std::int64_t seq : {1, 17, 100, 133}) {
    for (const std::int64_t dim : {64, 128}) {
      const Trial s = trial(DType::float32, 1, 1, 1, seq, seq, dim, dim).fill(25);
      expect_gradients_conform(s, run(s));
    }
  }
}

TEST_P(Forward, C049EveryDimensionCounts) {
  for (const std::int64_t dim : {1, 3, 16, 32, 96, 160, 256, 512}) {
    Trial s = trial(DType::float32, 1, 1, 1, 20, 30, dim, dim).fill(26);
    for (std::size_t n = 0; n < s.q.size(); ++n) {
      if (static_cast<std::int64_t>(n) % dim < dim / 2)
        s.q[n] = 0.0;  // data in the upper half only
    }
    expect_conforms(s, run(s));
  }
}

}  // namespace
}  // namespace tilewise::contract
