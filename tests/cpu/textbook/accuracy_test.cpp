/// Largest errors of the flash rows against the float64 reference on N(0, 1) inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "cpu/micro/isa.h"
#include "textbook_testing.h"

namespace tilewise {
namespace {

class Accuracy : public ::testing::TestWithParam<cpu::Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > cpu::best_isa()) {
      GTEST_SKIP() << "this CPU has no " << cpu::isa_name(GetParam());
    }
  }
};

/// Forward and backward by one kernel of each, or by the reference where `isa` is empty.
void run_rows(Textbook& t, const std::string& isa) {
  const auto choice = [&](const char* pass) {
    Choice named;
    (isa.empty() ? named.implementation : named.kernel) =
        isa.empty() ? "reference" : "flash_" + std::string(pass) + "_" + isa;
    return named;
  };
  const ForwardTensors f = t.forward_tensors();
  const Plan forward_plan = plan(f, t.spec, choice("fwd"));
  tilewise::run(forward_plan, f, t.spec, t.launch(forward_plan));
  const BackwardTensors b = t.backward_tensors();
  const Plan backward_plan = plan(b, t.spec, choice("bwd"));
  tilewise::run(backward_plan, b, t.spec, t.launch(backward_plan));
}

double largest_difference(const Floats& a, const Floats& b) {
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  }
  return largest;
}

TEST_P(Accuracy, NormalInputs) {
  for (const std::int64_t dim : {64, 128}) {
    for (const Causal causal : {Causal::none, Causal::bottom_right}) {
      Textbook ours{.heads_q = 2, .heads_k = 2, .seq_q = 600, .seq_k = 600, .dim = dim};
      ours.dim_v = dim;
      ours.spec.causal = causal;
      ours.fill();
      Textbook exact = ours;
      run_rows(ours, std::string(cpu::isa_name(GetParam())));
      run_rows(exact, "");
      EXPECT_LE(largest_difference(ours.o, exact.o), 1e-6) << dim;
      EXPECT_LE(largest_difference(ours.dq, exact.dq), 5e-6) << dim;
      EXPECT_LE(largest_difference(ours.dk, exact.dk), 5e-6) << dim;
      EXPECT_LE(largest_difference(ours.dv, exact.dv), 5e-6) << dim;
      EXPECT_GT(largest_difference(ours.dq, exact.dq), 0.0) << "the same kernel ran";
    }
  }
}

/// P is 1 for the first key and 0.8 for all others: in a single running sum, each of 2^18 is
/// rounded to what a float32 near the sum holds, always the same way.
TEST_P(Accuracy, SumsOverManyKeys) {
  constexpr std::int64_t kKeys = 262144;
  Textbook t{.heads_q = 1, .heads_k = 1, .seq_q = 17, .seq_k = kKeys, .dim = 1, .dim_v = 1};
  t.spec.scale = 1.0F;
  t.fill();
  t.q.assign(t.q.size(), 1.0F);
  t.k.assign(t.k.size(), -0.2231F);
  t.k[0] = 0.0F;
  t.v.assign(t.v.size(), 1.0F);
  const ForwardTensors f = t.forward_tensors();
  const Plan chosen =
      plan(f, t.spec,
           {.implementation = "", .kernel = "flash_fwd_" + std::string(cpu::isa_name(GetParam()))});
  tilewise::run(chosen, f, t.spec, t.launch(chosen));
  const double lse = std::log(1.0 + (kKeys - 1.0) * std::exp(double{-0.2231F}));
  for (const float value : t.lse) EXPECT_NEAR(value, lse, 2e-5);
  for (const float value : t.o) EXPECT_NEAR(value, 1.0F, 2e-6);
}

/// The keys that count come after 64 that are far below them: their scores are as exact as if they
/// came first.
TEST_P(Accuracy, ScoresFarAboveTheFirst) {
  Textbook t{.heads_q = 1, .heads_k = 1, .seq_q = 32, .seq_k = 80, .dim = 1, .dim_v = 1};
  t.spec.scale = 1.0F;
  t.fill();
  t.q.assign(t.q.size(), 1.0F);
  std::fill_n(t.k.begin(), 64, -70.0F);
  const Choice choice{.implementation = "",
                      .kernel = "flash_fwd_" + std::string(cpu::isa_name(GetParam()))};
  const ForwardTensors f = t.forward_tensors();
  const Plan chosen = plan(f, t.spec, choice);
  tilewise::run(chosen, f, t.spec, t.launch(chosen));
  double sum = 0.0;
  double o = 0.0;
  for (std::size_t j = 64; j < 80; ++j) {
    sum += std::exp(double{t.k[j]});
    o += std::exp(double{t.k[j]}) * t.v[j];
  }
  EXPECT_NEAR(t.o[0], o / sum, 6e-8);
  EXPECT_NEAR(t.lse[0], std::log(sum), 3e-7);
}

/// Scale is a float32, its product with log2 e is not.
TEST_P(Accuracy, ScaleNearTheLargestFloat) {
  Textbook ours{.heads_q = 2, .heads_k = 2, .seq_q = 64, .seq_k = 64, .dim = 64};
  ours.spec.scale = 3e38F;
  ours.fill();
  for (float& x : ours.q) x *= 1e-19F;
  for (float& x : ours.k) x *= 1e-19F;
  Textbook exact = ours;
  const auto forward = [](Textbook& t, const Choice& choice) {
    const ForwardTensors f = t.forward_tensors();
    const Plan chosen = plan(f, t.spec, choice);
    tilewise::run(chosen, f, t.spec, t.launch(chosen));
  };
  forward(ours,
          {.implementation = "", .kernel = "flash_fwd_" + std::string(cpu::isa_name(GetParam()))});
  forward(exact, {.implementation = "reference", .kernel = ""});
  EXPECT_LE(largest_difference(ours.o, exact.o), 1e-4);
  EXPECT_LE(largest_difference(ours.lse, exact.lse), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(EverySet, Accuracy,
                         ::testing::Values(cpu::Isa::scalar, cpu::Isa::avx2, cpu::Isa::avx512),
                         [](const auto& p) { return std::string(cpu::isa_name(p.param)); });

}  // namespace
}  // namespace tilewise
