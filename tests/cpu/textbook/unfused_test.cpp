/// eager and fused: what they keep, what they recompute, and what must not leak through
/// whole-matrix products. That their results are right is tests/conformance's and tests/contract's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cpu/textbook/blas.h"
#include "textbook_testing.h"

namespace tilewise {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

using Role = MemoryItem::Role;

class Unfused : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (cpu::Blas::get() == nullptr) GTEST_SKIP() << cpu::Blas::missing_reason();
  }
  Choice choice() const { return {.implementation = GetParam(), .kernel = ""}; }
};

/// Everything between S and P at once, and dropout.
void add_options(Textbook& t, const ScoreMod& mod) {
  t.spec.causal = Causal::bottom_right;
  t.spec.softcap = 2.0;
  t.spec.score_mod = &mod;
  t.spec.dropout = {.p = 0.25, .seed = 7, .offset = 0};
}

ScoreMod doubling() {
  const auto twice = [](float* x, const ScoreTile& tile) {
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      for (std::int64_t c = 0; c < tile.cols; ++c) x[r * tile.row_stride + c] *= 2.0F;
    }
  };
  return {.apply = [twice](const ScoreTile& x) { twice(x.scores, x); },
          .derivative = [twice](const ScoreTile& x, float* grad) { twice(grad, x); }};
}

TEST_P(Unfused, KeepsTwoMatricesOfScores) {
  Textbook t;
  t.batch = 8;
  t.heads_q = t.heads_k = 1;
  t.seq_q = t.seq_k = 64;
  t.fill();
  ForwardTensors f = t.forward_tensors();
  const std::int64_t matrix = 8 * 64 * 64 * 4;

  const Plan dropped = plan(f, t.spec, choice());
  EXPECT_EQ(dropped.saved_bytes, 2 * matrix);
  EXPECT_EQ(item_bytes(dropped, "S, then P", Role::workspace), matrix);

  f.saved.bytes = dropped.saved_bytes;
  const Plan kept = plan(f, t.spec, choice());
  EXPECT_EQ(kept.saved_bytes, 2 * matrix);
  EXPECT_EQ(item_bytes(kept, "S", Role::saved), matrix);
  EXPECT_EQ(item_bytes(kept, "P", Role::saved), matrix);
  EXPECT_LT(kept.workspace_bytes, matrix / 8);

  BackwardTensors b = t.backward_tensors();
  b.saved.bytes = kept.saved_bytes;
  const Plan with_state = plan(b, t.spec, choice());
  EXPECT_EQ(item_bytes(with_state, "dP, then dS", Role::workspace), matrix);
  EXPECT_LT(with_state.workspace_bytes, matrix + matrix / 8);
  b.saved = {};
  const Plan without = plan(b, t.spec, choice());
  EXPECT_EQ(without.saved_bytes, 0);
  EXPECT_GE(without.workspace_bytes, 2 * matrix);
  EXPECT_LT(without.workspace_bytes, 2 * matrix + matrix / 8);
}

TEST_P(Unfused, SavedAndRecomputedStateGiveTheSameBits) {
  const ScoreMod mod = doubling();
  for (const bool options : {false, true}) {
    Textbook kept;
    if (options) add_options(kept, mod);
    kept.fill();
    kept.run(GetParam(), true);
    Textbook anew;
    if (options) add_options(anew, mod);
    anew.fill();
    anew.run(GetParam(), false);
    EXPECT_TRUE(same_bits(kept.o, anew.o)) << options;
    EXPECT_TRUE(same_bits(kept.lse, anew.lse)) << options;
    EXPECT_TRUE(same_bits(kept.dq, anew.dq)) << options;
    EXPECT_TRUE(same_bits(kept.dk, anew.dk)) << options;
    EXPECT_TRUE(same_bits(kept.dv, anew.dv)) << options;
    EXPECT_TRUE(std::all_of(kept.dk.begin(), kept.dk.end(), [](float x) { return x == x; }));
  }
}

TEST_P(Unfused, NothingHiddenLeaks) {
  // Causal with more keys in front than queries: query 0 sees keys 0 .. shift. The last key is seen
  // by the last query alone; the mask hides the first query's row and key 3 whole.
  std::vector<std::uint8_t> visible(40 * 70, 1);
  std::fill_n(visible.begin(), 70, std::uint8_t{0});
  for (std::size_t i = 0; i < 40; ++i) visible[i * 70 + 3] = 0;
  const auto spec = [&](Textbook& t) {
    t.spec.causal = Causal::bottom_right;
    t.spec.softcap = 3.0;
    t.spec.mask = Tensor::contiguous(visible.data(), DType::boolean, {1, 1, 40, 70});
  };
  Textbook clean;
  spec(clean);
  clean.fill();
  clean.run(GetParam(), true);

  Textbook dirty;
  spec(dirty);
  dirty.fill();
  for (std::size_t c = 0; c < 8; ++c) {
    dirty.q[c] = c % 2 == 0 ? kNaN : kInf;          // the row that sees nothing
    dirty.k[3 * 8 + c] = c % 2 == 0 ? kInf : kNaN;  // the key that nobody sees
  }
  for (std::size_t c = 0; c < 12; ++c) {
    dirty.d_o[c] = kNaN;
    dirty.v[3 * 12 + c] = c % 2 == 0 ? kNaN : -kInf;
  }
  dirty.run(GetParam(), true);
  for (const auto member :
       {&Textbook::o, &Textbook::lse, &Textbook::dq, &Textbook::dk, &Textbook::dv}) {
    const Floats& expected = clean.*member;
    const Floats& actual = dirty.*member;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      // A row of a product may be split where a value was left out: rounding differs.
      if (std::isinf(expected[i])) {
        EXPECT_EQ(actual[i], expected[i]) << i;
      } else {
        EXPECT_NEAR(actual[i], expected[i], 1e-5F) << i;
      }
    }
  }
}

TEST_P(Unfused, AVisibleNaNReachesItsRowsOnly) {
  Textbook t;
  t.heads_q = 1;
  t.spec.causal = Causal::bottom_right;
  t.fill();
  t.v[69 * 12] = kNaN;  // the last key: only the last query sees it
  t.run(GetParam(), true);
  EXPECT_TRUE(std::isnan(t.o[39 * 12]));
  EXPECT_TRUE(std::all_of(t.o.begin(), t.o.begin() + 39 * 12, [](float x) { return x == x; }));
  EXPECT_TRUE(std::isnan(t.dq[39 * 8]));
  EXPECT_TRUE(std::all_of(t.dq.begin(), t.dq.begin() + 39 * 8, [](float x) { return x == x; }));
}

TEST_P(Unfused, APlanForSavedStateNeedsIt) {
  Textbook t;
  t.fill();
  ForwardTensors f = t.forward_tensors();
  f.saved.bytes = plan(f, t.spec, choice()).saved_bytes;
  const Plan kept = plan(f, t.spec, choice());
  f.saved = {};
  EXPECT_THROW(run(kept, f, t.spec, t.launch(kept)), InvalidArgument);
}

TEST_P(Unfused, ASequenceDoesNotDependOnItsBatch) {
  // Sequence 1 of a packed batch of three, and alone.
  Textbook all;
  all.heads_q = 2;
  all.seq_q = all.seq_k = 20 + 150 + 330;
  all.fill();
  std::vector<std::int32_t> offsets{0, 20, 170, 500};
  all.spec.cu_seqlens_q = all.spec.cu_seqlens_k =
      Tensor::contiguous(offsets.data(), DType::int32, {4});
  all.spec.deterministic = true;
  all.run(GetParam(), false);

  Textbook one;
  one.heads_q = 2;
  one.seq_q = one.seq_k = 150;
  one.spec.deterministic = true;
  one.fill();
  const auto rows_of = [](const Floats& from, std::int64_t heads, std::int64_t dim) {
    Floats rows;
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto begin = from.begin() + (h * 500 + 20) * dim;
      rows.insert(rows.end(), begin, begin + 150 * dim);
    }
    return rows;
  };
  one.q = rows_of(all.q, 2, 8);
  one.k = rows_of(all.k, 1, 8);
  one.v = rows_of(all.v, 1, 12);
  one.d_o = rows_of(all.d_o, 2, 12);
  one.run(GetParam(), false);
  EXPECT_TRUE(same_bits(one.o, rows_of(all.o, 2, 12)));
  EXPECT_TRUE(same_bits(one.dq, rows_of(all.dq, 2, 8)));
  EXPECT_TRUE(same_bits(one.dk, rows_of(all.dk, 1, 8)));
  EXPECT_TRUE(same_bits(one.dv, rows_of(all.dv, 1, 12)));
}

TEST_P(Unfused, RefusesWithTheReason) {
  Textbook t;
  t.fill();
  ForwardTensors f = t.forward_tensors();
  for (Tensor* tensor : {&f.q, &f.k, &f.v, &f.o}) {
    tensor->dtype = DType::float64;
    tensor->data = nullptr;
  }
  try {
    plan(f, t.spec, choice());
    ADD_FAILURE() << "no exception";
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("float64 is not supported by this kernel"),
              std::string::npos)
        << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Implementations, Unfused, testing::Values("eager", "fused"),
                         [](const auto& name) { return std::string(name.param); });

TEST(Fused, KeepsAsMuchAsEager) {
  if (cpu::Blas::get() == nullptr) GTEST_SKIP() << cpu::Blas::missing_reason();
  for (const std::int64_t seq : {256, 1024, 4096, 8192, 16384}) {
    const auto tensor = [&] { return Tensor::bhsd(nullptr, DType::float32, 8, 1, seq, 64); };
    const ForwardTensors f{.q = tensor(),
                           .k = tensor(),
                           .v = tensor(),
                           .o = tensor(),
                           .lse = Tensor::contiguous(nullptr, DType::float32, {8, 1, seq}),
                           .saved = {}};
    const Plan eager = plan(f, {}, {.implementation = "eager", .kernel = ""});
    const Plan fused = plan(f, {}, {.implementation = "fused", .kernel = ""});
    EXPECT_EQ(fused.saved_bytes, eager.saved_bytes) << seq;
    EXPECT_EQ(eager.saved_bytes, 2 * 8 * seq * seq * 4) << seq;
    EXPECT_LT(fused.predicted_ms, eager.predicted_ms) << seq;
  }
}

}  // namespace
}  // namespace tilewise
