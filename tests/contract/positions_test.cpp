/// Causality and windows: CONTRACT 4, 5.
#include "contract/harness.h"

namespace tilewise::contract {
namespace {

/// q = k = 0, so that O is the mean of the visible values.
Trial means(std::int64_t seq_q, std::int64_t seq_k) {
  Trial s = trial(DType::float32, 1, 1, 1, seq_q, seq_k, 8, 1);
  s.v = counting(seq_k, 1.0);
  return s;
}

TEST_P(Forward, C018CausalAlignment) {
  const auto outputs = [&](std::int64_t seq_q, std::int64_t seq_k, Causal causal) {
    Trial s = means(seq_q, seq_k);
    s.spec.causal = causal;
    return run(s).o;
  };
  expect_near(outputs(2, 5, Causal::bottom_right), {2.5, 3.0}, 1e-6, "bottom-right, 2 x 5");
  expect_near(outputs(5, 2, Causal::bottom_right), {0, 0, 0, 1, 1.5}, 1e-6, "bottom-right, 5 x 2");
  expect_near(outputs(2, 5, Causal::top_left), {1, 1.5}, 1e-6, "top-left, 2 x 5");
  expect_near(outputs(5, 2, Causal::top_left), {1, 1.5, 1.5, 1.5, 1.5}, 1e-6, "top-left, 5 x 2");
}

TEST_P(Forward, C019MoreQueriesThanKeysIsHalfZeroByDefinition) {
  Trial s = means(64, 32);
  s.spec.causal = Causal::bottom_right;
  const Results r = run(s);
  expect_all(slice(r.o, 0, 32), 0.0, "O");
  EXPECT_EQ(r.o[32], 1.0);
}

TEST_P(Forward, C020AWindowOfFourKeys) {
  Trial s = means(16, 16);
  s.spec.window = {.left = 3, .right = 0};
  Values expected;
  for (int i = 0; i < 16; ++i) {
    const int keys = std::min(i + 1, 4);
    expected.push_back(i + 1 - (keys - 1) / 2.0);  // v_j = j + 1
  }
  expect_near(run(s).o, expected, 1e-6, "O");
}

TEST_P(Forward, C020WindowBoundsAreOffsetsOnTheShiftedDiagonal) {
  Trial s = means(3, 6);  // the diagonal of row i is key i + 3
  s.spec.window = {.left = 2, .right = -1};
  expect_near(run(s).o, {2.5, 3.5, 4.5}, 1e-6, "keys i + 1 and i + 2");
  s.spec.window = {.left = -1, .right = 1};
  expect_near(run(s).o, {5, 6, 0}, 1e-6, "key i + 4");
  s.spec.window = {.left = {}, .right = -2};
  expect_near(run(s).o, {1.5, 2, 2.5}, 1e-6, "keys up to i + 1");
}

TEST_P(Forward, C025AWindowWiderThanTheSequenceStaysCausal) {
  for (const std::int64_t seq : {16, 255, 256, 257}) {
    Trial s = trial(DType::float32, 1, 1, 1, seq, seq, 16, 16).fill(8);
    s.spec.causal = Causal::bottom_right;
    const Results causal = run(s);
    s.spec.window.left = 256;
    expect_near(run(s).o, causal.o, 1e-6, "O");
    s.spec.window.right = 1000;
    expect_near(run(s).o, causal.o, 1e-6, "O");
  }
}

/// Prefill at once or in chunks against the growing cache.
TEST_P(Forward, C027ChunkedPrefill) {
  constexpr std::int64_t kSeq = 300, kDim = 32;
  Trial whole = trial(DType::float32, 1, 1, 1, kSeq, kSeq, kDim, kDim).fill(9);
  whole.spec.causal = Causal::bottom_right;
  const Results expected = run(whole);
  std::int64_t begin = 0;
  for (const std::int64_t chunk : {128, 128, 44}) {
    const std::int64_t end = begin + chunk;
    Trial part = trial(DType::float32, 1, 1, 1, chunk, end, kDim, kDim);
    part.spec.causal = Causal::bottom_right;
    part.q = slice(whole.q, begin * kDim, end * kDim);
    part.k = slice(whole.k, 0, end * kDim);
    part.v = slice(whole.v, 0, end * kDim);
    const Results r = run(part);
    expect_near(r.o, slice(expected.o, begin * kDim, end * kDim), 2e-6, "O");
    expect_near(r.lse, slice(expected.lse, begin, end), 2e-6, "LSE");
    begin = end;
  }
}

/// Causality, windows and a bool mask give what the same mask written out gives.
TEST_P(Forward, PositionsEqualTheSameMaskWrittenOut) {
  constexpr std::int64_t kQueries = 37, kKeys = 70;
  std::vector<bool> visible;
  for (std::int64_t i = 0; i < kQueries; ++i) {
    for (std::int64_t j = 0; j < kKeys; ++j) {
      const std::int64_t diagonal = i + kKeys - kQueries;
      visible.push_back(j >= diagonal - 40 && j <= diagonal && j <= diagonal + 5 && j % 3 != 1);
    }
  }
  std::vector<bool> thirds;
  for (std::int64_t j = 0; j < kKeys; ++j) thirds.push_back(j % 3 != 1);
  Owned written_out = booleans({kQueries, kKeys}, visible);
  Owned every_third = booleans({1, kKeys}, thirds);
  Trial s = trial(DType::float32, 2, 2, 1, kQueries, kKeys, 24, 40).fill(10);
  s.spec.mask = written_out.tensor();
  const Results expected = run(s);
  s.spec.mask = every_third.tensor();
  s.spec.causal = Causal::bottom_right;
  s.spec.window = {.left = 40, .right = 5};
  const Results r = run(s);
  expect_near(r.o, expected.o, 1e-6, "O");
  expect_near(r.lse, expected.lse, 2e-6, "LSE");
}

}  // namespace
}  // namespace tilewise::contract
