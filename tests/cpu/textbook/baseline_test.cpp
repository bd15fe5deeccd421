/// baseline: what it holds and refuses, and one result by hand. That its results are right is
/// tests/conformance's and tests/contract's.
#include <gtest/gtest.h>

#include <cmath>

#include "textbook_testing.h"

namespace tilewise {
namespace {

const Choice kBaseline{.implementation = "baseline", .kernel = ""};

TEST(Baseline, TwoKeysByHand) {
  Textbook t;
  t.heads_q = t.heads_k = t.seq_q = t.dim = t.dim_v = 1;
  t.seq_k = 2;
  t.fill();
  t.q = {1.0F};
  t.k = {1.0F, 3.0F};
  t.v = {10.0F, 20.0F};
  const Plan ran = forward(t.forward_tensors(), t.spec, {}, kBaseline);
  EXPECT_EQ(ran.kernel, "baseline_fwd");
  const double p1 = 1.0 / (1.0 + std::exp(-2.0));  // of the second key
  EXPECT_NEAR(t.o[0], 10.0 * (1.0 - p1) + 20.0 * p1, 1e-5);
  EXPECT_NEAR(t.lse[0], 3.0 + std::log(1.0 + std::exp(-2.0)), 1e-6);
}

TEST(Baseline, HoldsOneMatrixOfScoresAndSavesNothing) {
  Textbook t;
  t.batch = 3;
  t.fill();
  const Plan p = plan(t.forward_tensors(), t.spec, kBaseline);
  EXPECT_EQ(item_bytes(p, "S, then P", MemoryItem::Role::workspace), 3 * 2 * 40 * 70 * 4);
  EXPECT_EQ(p.saved_bytes, 0);
}

TEST(Baseline, HasNoBackward) {
  Textbook t;
  t.fill();
  EXPECT_THROW(plan(t.backward_tensors(), t.spec, kBaseline), Unsupported);
}

}  // namespace
}  // namespace tilewise
