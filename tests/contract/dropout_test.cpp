/// Dropout: CONTRACT 13.
#include <cmath>

#include "contract/harness.h"
#include "problem/philox.h"

namespace tilewise::contract {
namespace {

/// q = k = 0 and V = 1: O(i, j) shows the keep bit of every pair.
Trial bits_shown(std::int64_t seq, double p) {
  Trial s = trial(DType::float32, 2, 2, 1, seq, seq, 8, seq);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t j = 0; j < seq; ++j)
      s.v[static_cast<std::size_t>((b * seq + j) * seq + j)] = 1.0;
  }
  s.spec.dropout = {.p = p, .seed = 0xFEDCBA9876543210U, .offset = 0x1000000FFU};
  return s;
}

TEST_P(Forward, C094KeepBitsAreThePinnedOnes) {
  for (const std::int64_t seq : {5, 67, 130}) {
    const Trial s = bits_shown(seq, 0.4);
    const DropoutMask mask(s.spec.dropout);
    const Results r = run(s);
    const double kept = 1.0 / (0.6 * static_cast<double>(seq));
    std::size_t n = 0;
    for (std::int64_t bh = 0; bh < 4; ++bh) {
      for (std::int64_t i = 0; i < seq; ++i) {
        for (std::int64_t j = 0; j < seq; ++j, ++n) {
          ASSERT_NEAR(r.o[n], mask.keeps(bh, i, j) ? kept : 0.0, 1e-6)
              << bh << " " << i << " " << j;
        }
      }
    }
  }
}

TEST_P(Forward, C094TheRateIsWithinFourSigma) {
  const Trial s = bits_shown(128, 0.25);
  double kept = 0.0;
  for (const double o : run(s).o) kept += o != 0.0 ? 1.0 : 0.0;
  const double draws = 4.0 * 128 * 128;
  EXPECT_NEAR(kept / draws, 0.75, 4 * std::sqrt(0.75 * 0.25 / draws));
}

TEST_P(Forward, C094ProbabilityZeroIsBitwiseNoDropout) {
  Trial s = trial(DType::bfloat16, 1, 2, 2, 50, 60, 32, 32).fill(70);
  const std::string bits = run(s).bits;
  s.spec.dropout = {.p = 0.0, .seed = 5, .offset = 6};
  EXPECT_EQ(run(s).bits, bits);
}

TEST_P(Forward, C094ProbabilityOneGivesZero) {
  Trial s = trial(DType::float32, 1, 2, 2, 50, 60, 32, 32).fill(71);
  const Values lse = run(s).lse;
  s.spec.dropout.p = 1.0;
  const Results r = run(s);
  expect_all(r.o, 0.0, "O");
  expect_near(r.lse, lse, 0.0, "LSE is before dropout");
}

TEST_P(Backward, C094ProbabilityOneGivesZero) {
  Trial s = trial(DType::float32, 1, 2, 2, 50, 60, 32, 32).fill(71);
  s.spec.dropout.p = 1.0;
  const Results r = run(s);
  for (const Values* gradient : {&r.dq, &r.dk, &r.dv}) expect_all(*gradient, 0.0, "gradient");
}

TEST_P(Backward, C092BackwardDropsWhatForwardDropped) {
  Trial s = trial(DType::float32, 2, 4, 2, 70, 75, 32, 48).fill(72);
  s.spec.dropout = {.p = 0.48, .seed = 11, .offset = 3};
  s.d_lse = randn(s.rows(), 73);
  expect_gradients_conform(s, run(s));
}

}  // namespace
}  // namespace tilewise::contract
