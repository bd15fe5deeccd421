/// Rows that see no key: CONTRACT 2, 3. Case numbers are those of the hard cases.
#include <cmath>
#include <limits>

#include "contract/harness.h"

namespace tilewise::contract {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Packed, causal: the last row of each segment sees its one key, the rows before it none.
struct OneKeySegments {
  Owned cu_q = integers({0, 76, 110, 256});
  Owned cu_k = integers({0, 1, 2, 3});
  Trial s = trial(DType::float16, 1, 1, 1, 256, 3, 32, 32).fill(0, 3.0);
  OneKeySegments() {
    s.packed = true;
    s.d_o = constant(256 * 32, 1.0);
    s.spec.causal = Causal::bottom_right;
    s.spec.cu_seqlens_q = cu_q.tensor();
    s.spec.cu_seqlens_k = cu_k.tensor();
  }
};

TEST_P(Forward, C001OnlyTheLastRowOfEachSegmentSeesAKey) {
  OneKeySegments c;
  const Results r = run(c.s);
  const Values v = Owned(DType::float16, {96}, c.s.v).values();
  std::int64_t segment = 0;
  for (std::int64_t i = 0; i < 256; ++i) {
    const bool last = i == 75 || i == 109 || i == 255;
    const Values row = slice(r.o, i * 32, (i + 1) * 32);
    if (last) {
      EXPECT_EQ(row, slice(v, segment * 32, segment * 32 + 32));
      ++segment;
    } else {
      expect_all(row, 0.0, "O");
    }
    EXPECT_EQ(std::isinf(r.lse[static_cast<std::size_t>(i)]), !last) << i;
  }
}

TEST_P(Backward, C001GradientsOfOneKeySegments) {
  OneKeySegments c;
  const Results r = run(c.s);
  expect_all(r.dq, 0.0, "dQ");
  expect_all(r.dk, 0.0, "dK");
  expect_all(r.dv, 1.0, "dV");
}

/// Bool mask true in [:4, :4] only.
struct QuarterMask {
  Owned mask = booleans({8, 8}, [] {
    std::vector<bool> m;
    for (int n = 0; n < 64; ++n) m.push_back(n / 8 < 4 && n % 8 < 4);
    return m;
  }());
  Trial s = trial(DType::float32, 1, 1, 1, 8, 8, 8, 8).fill(2);
  Trial part = trial(DType::float32, 1, 1, 1, 4, 4, 8, 8);
  QuarterMask() {
    s.spec.mask = mask.tensor();
    part.q = slice(s.q, 0, 32);
    part.k = slice(s.k, 0, 32);
    part.v = slice(s.v, 0, 32);
    part.d_o = slice(s.d_o, 0, 32);
  }
};

TEST_P(Forward, C002RowsThatTheMaskEmpties) {
  QuarterMask c;
  const Results r = run(c.s);
  expect_near(slice(r.o, 0, 32), run(c.part).o, 1e-6, "O");
  expect_all(slice(r.o, 32, 64), 0.0, "O of empty rows");
  expect_all(slice(r.lse, 4, 8), -kInfinity, "LSE of empty rows");
}

TEST_P(Backward, C002GradientsOfRowsThatTheMaskEmpties) {
  QuarterMask c;
  const Results r = run(c.s);
  const Results part = run(c.part);
  expect_near(slice(r.dq, 0, 32), part.dq, 1e-6, "dQ");
  expect_near(slice(r.dk, 0, 32), part.dk, 1e-6, "dK");
  expect_near(slice(r.dv, 0, 32), part.dv, 1e-6, "dV");
  expect_all(slice(r.dq, 32, 64), 0.0, "dQ of empty rows");
  expect_all(slice(r.dk, 32, 64), 0.0, "dK of hidden keys");
  expect_all(slice(r.dv, 32, 64), 0.0, "dV of hidden keys");
}

/// The same 14 rows empty by a -inf bias, at the start of a query tile or in its middle.
Results with_empty_rows(const Row& row, std::int64_t first, bool sinks) {
  constexpr std::int64_t kRows = 40, kKeys = 33, kDim = 512;
  Trial s = trial(DType::float32, 1, 2, 2, kRows, kKeys, kDim, kDim).fill(3, 0.2);
  Values bias = constant(kRows * kKeys, 0.0);
  for (std::int64_t n = first * kKeys; n < (first + 14) * kKeys; ++n) {
    bias[static_cast<std::size_t>(n)] = -kInfinity;
  }
  Owned bias_tensor(DType::float32, {kRows, kKeys}, bias);
  Owned sink(DType::float32, {2}, {0.5, -1.0});
  s.spec.bias = bias_tensor.tensor();
  if (sinks) s.spec.sinks = sink.tensor();
  Results r = run_forward(s, row.kernel);
  expect_conforms(s, r);
  return r;
}

TEST_P(Forward, C005EmptyRowsAtTheStartOfATile) {
  for (const std::int64_t first : {0, 13}) {
    for (const bool sinks : {false, true}) {
      const Results r = with_empty_rows(GetParam(), first, sinks);
      for (std::int64_t h = 0; h < 2; ++h) {
        const std::int64_t begin = h * 40 + first;
        expect_all(slice(r.o, begin * 512, (begin + 14) * 512), 0.0, "O of empty rows");
        const double lse = sinks ? (h == 0 ? 0.5 : -1.0) : -kInfinity;
        expect_all(slice(r.lse, begin, begin + 14), lse, "LSE of empty rows");
      }
    }
  }
}

TEST_P(Forward, C006CausalWithMoreQueriesThanKeys) {
  for (const auto& [seq_q, seq_k] : {std::pair{300, 37}, std::pair{129, 128}, std::pair{257, 1}}) {
    Trial s = trial(DType::float32, 1, 1, 1, seq_q, seq_k, 64, 64).fill(4);
    s.spec.causal = Causal::bottom_right;
    const Results r = run(s);
    const std::int64_t empty = seq_q - seq_k;
    expect_all(slice(r.o, 0, empty * 64), 0.0, "O of empty rows");
    expect_all(slice(r.lse, 0, empty), -kInfinity, "LSE of empty rows");
    const Values first_value = Owned(DType::float32, {64}, slice(s.v, 0, 64)).values();
    expect_near(slice(r.o, empty * 64, empty * 64 + 64), first_value, 1e-6, "O of the first row");
  }
}

TEST_P(Backward, C006CausalWithMoreQueriesThanKeys) {
  Trial s = trial(DType::float32, 1, 1, 1, 300, 37, 64, 64).fill(4);
  s.spec.causal = Causal::bottom_right;
  const Results r = run(s);
  expect_all(slice(r.dq, 0, 263 * 64), 0.0, "dQ of empty rows");
  expect_gradients_conform(s, r);
}

/// Additive mask of the most negative float on the first keys: a finite bias, whose weight
/// underflows to 0.
struct FiniteMinMask {
  static constexpr std::int64_t kKeys = 441, kHidden = 128;
  Owned bias = Owned(DType::float32, {kKeys}, [] {
    Values b = constant(kKeys, 0.0);
    std::fill_n(b.begin(), kHidden, -static_cast<double>(std::numeric_limits<float>::max()));
    return b;
  }());
  Trial s = trial(DType::float32, 1, 2, 2, 31, kKeys, 64, 64).fill(5);
  FiniteMinMask() { s.spec.bias = bias.tensor(); }
};

TEST_P(Forward, C007AFiniteMinimumWeighsNothing) {
  FiniteMinMask c;
  const Results r = run(c.s);
  expect_finite(r.o, "O");
  expect_conforms(c.s, r);
}

TEST_P(Backward, C007AFiniteMinimumWeighsNothing) {
  FiniteMinMask c;
  const Results r = run(c.s);
  for (const Values* gradient : {&r.dq, &r.dk, &r.dv, &r.dbias})
    expect_finite(*gradient, "gradient");
  expect_all(slice(r.dv, 0, FiniteMinMask::kHidden * 64), 0.0, "dV of weightless keys");
  expect_gradients_conform(c.s, r);
}

TEST_P(Forward, C007AllKeysAtTheFiniteMinimumIsNotAMask) {
  Trial s = trial(DType::float32, 1, 1, 1, 2, 4, 8, 1);
  s.v = {1, 2, 3, 6};
  Owned bias(DType::float32, {4},
             constant(4, -static_cast<double>(std::numeric_limits<float>::max())));
  s.spec.bias = bias.tensor();
  expect_near(run(s).o, {3, 3}, 1e-6, "O");  // the mean
}

/// Left padding with causality: the padded entry's first rows see nothing.
TEST_P(Forward, C009LeftPaddingAndCausal) {
  constexpr std::int64_t kSeq = 33, kDim = 128, kPadding = 27;
  Trial s = trial(DType::bfloat16, 2, 2, 2, kSeq, kSeq, kDim, kDim).fill(6);
  s.spec.scale = 0.0883883;
  std::vector<bool> visible;
  for (int b = 0; b < 2; ++b) {
    for (int i = 0; i < kSeq; ++i) {
      for (int j = 0; j < kSeq; ++j) visible.push_back(j <= i && (b == 0 || j >= kPadding));
    }
  }
  Owned mask = booleans({2, 1, kSeq, kSeq}, visible);
  s.spec.mask = mask.tensor();
  const Results r = run(s);
  expect_conforms(s, r);
  const Values v = Owned(DType::bfloat16, {2, 2, kSeq, kDim}, s.v).values();
  for (std::int64_t h = 0; h < 2; ++h) {
    const std::int64_t begin = (2 + h) * kSeq;
    expect_all(slice(r.o, begin * kDim, (begin + kPadding) * kDim), 0.0, "O of padding");
    const std::int64_t first = (begin + kPadding) * kDim;
    EXPECT_EQ(slice(r.o, first, first + kDim), slice(v, first, first + kDim));
  }
}

TEST_P(Forward, C010NoKeysAtAll) {
  Trial s = trial(DType::float32, 2, 2, 1, 5, 0, 16, 16);
  const Results r = run(s);
  expect_all(r.o, 0.0, "O");
  expect_all(r.lse, -kInfinity, "LSE");
}

TEST_P(Forward, C010ASegmentWithoutKeys) {
  Trial s = trial(DType::float32, 1, 2, 1, 8, 4, 16, 16).fill(7);
  s.packed = true;
  Owned cu_q = integers({0, 5, 8}), cu_k = integers({0, 0, 4});
  s.spec.cu_seqlens_q = cu_q.tensor();
  s.spec.cu_seqlens_k = cu_k.tensor();
  const Results r = run(s);
  for (std::int64_t h = 0; h < 2; ++h) {
    expect_all(slice(r.o, h * 128, h * 128 + 80), 0.0, "O");
    expect_all(slice(r.lse, h * 8, h * 8 + 5), -kInfinity, "LSE");
    expect_finite(slice(r.lse, h * 8 + 5, h * 8 + 8), "LSE");
  }
}

TEST_P(Backward, NoKeysAtAll) {
  const Results r = run(trial(DType::float32, 2, 2, 1, 5, 0, 16, 16));
  expect_all(r.dq, 0.0, "dQ");
}

/// How a row comes to see no key.
enum class Hider : std::uint8_t { mask, bias, mask_beside_sinks, position };

/// Rows 7 and 130 see nothing; with `poison`, their dO and Q are NaN and Inf. Short and long
/// problems take different ways through bfloat16's tiles.
Trial with_hidden_rows(DType dtype, Hider hider, std::int64_t keys, bool poison, Owned& hides,
                       Owned& sinks) {
  constexpr std::int64_t kRows = 160, kDim = 32;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Trial s = trial(dtype, 1, 2, 1, kRows, keys, kDim, kDim).fill(11);
  std::vector<std::int64_t> rows{7, 130};
  if (hider == Hider::position) {  // more queries than keys: the first see none
    rows = {0, kRows - keys - 1};
    s.spec.causal = Causal::bottom_right;
  } else if (hider == Hider::bias) {
    Values bias = constant(kRows * keys, 0.0);
    for (const std::int64_t row : rows) std::fill_n(bias.begin() + row * keys, keys, -kInfinity);
    hides = Owned(DType::float32, {kRows, keys}, bias);
    s.spec.bias = hides.tensor();
  } else {
    std::vector<bool> mask(static_cast<std::size_t>(kRows * keys), true);
    for (const std::int64_t row : rows) std::fill_n(mask.begin() + row * keys, keys, false);
    hides = booleans({kRows, keys}, mask);
    s.spec.mask = hides.tensor();
  }
  if (hider == Hider::mask_beside_sinks) {
    sinks = Owned(DType::float32, {2}, {0.5, -1.0});
    s.spec.sinks = sinks.tensor();
  }
  for (std::int64_t n = 0; poison && n < 2 * kDim; ++n) {
    const std::int64_t first = n / kDim * kRows;  // of the head
    s.d_o[static_cast<std::size_t>((first + rows[0]) * kDim + n % kDim)] = nan;
    s.d_o[static_cast<std::size_t>((first + rows[1]) * kDim + n % kDim)] = kInfinity;
    if (hider != Hider::bias) s.q[static_cast<std::size_t>((first + rows[1]) * kDim)] = nan;
  }
  return s;
}

TEST_P(TypedBackward, WhatARowWithoutKeysHoldsAddsNothing) {
  for (const DType dtype : types_) {
    for (const Hider hider :
         {Hider::mask, Hider::bias, Hider::mask_beside_sinks, Hider::position}) {
      for (const std::int64_t keys : {40, 150}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(hider) << ", " << keys << " keys");
        Owned hides, sinks;
        const Results clean =
            run_backward(with_hidden_rows(dtype, hider, keys, false, hides, sinks), GetParam());
        const Results r =
            run_backward(with_hidden_rows(dtype, hider, keys, true, hides, sinks), GetParam());
        // Library products set rows with NaN apart, and so add in another order.
        const double rounding = dtype == DType::float32 ? 1e-5 : 1e-2;
        const double most = GetParam().implementation == "flash" ? 0.0 : rounding;
        expect_near(r.dq, clean.dq, most, "dQ");
        expect_near(r.dk, clean.dk, most, "dK");
        expect_near(r.dv, clean.dv, most, "dV");
        expect_near(r.dbias, clean.dbias, most, "dbias");
        expect_near(r.dsinks, clean.dsinks, most, "dsinks");
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::contract
