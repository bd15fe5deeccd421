/// The seeds' own test: B = 4, N = 128, D = 64, float32, causal and not; O, L, dQ, dK, dV. Theirs
/// allows 1e-2, ours 1e-5.
#include "contract/harness.h"

namespace tilewise::contract {
namespace {

Trial seed_problem(bool causal) {
  Trial s = trial(DType::float32, 4, 1, 1, 128, 128, 64, 64).fill(0);
  s.spec.causal = causal ? Causal::bottom_right : Causal::none;
  return s;
}

TEST_P(Forward, SeedTest) {
  for (const bool causal : {false, true}) {
    const Trial s = seed_problem(causal);
    const reference::Forward truth = forward_truth(s);
    const Results r = run(s);
    expect_near(r.o, truth.o, 1e-5, "O");
    expect_near(r.lse, truth.lse, 1e-5, "L");
  }
}

TEST_P(Backward, SeedTest) {
  for (const bool causal : {false, true}) {
    const Trial s = seed_problem(causal);
    const reference::Backward truth = backward_truth(s);
    const Results r = run(s);
    expect_near(r.dq, truth.dq, 1e-5, "dQ");
    expect_near(r.dk, truth.dk, 1e-5, "dK");
    expect_near(r.dv, truth.dv, 1e-5, "dV");
  }
}

/// Where 1/sqrt(d) belongs: [18] and [19] apply it to dQ and dK, the course's Algorithm 2 to dS.
/// For one query and two keys by hand: P = (1/2, 1/2), dP = (1, 0), dS = (1/4, -1/4), and dQ = dS K
/// / 2 with d = 4.
TEST_P(Backward, TheScaleIsAppliedOnce) {
  Trial s = trial(DType::float32, 1, 1, 1, 1, 2, 4, 1);
  s.q = {0, 0, 0, 0};
  s.k = {8, 0, 0, 0, 0, 8, 0, 0};
  s.v = {1, 0};
  const Results r = run(s);
  expect_near(r.dq, {1, -1, 0, 0}, 1e-6, "dQ");
  s.q = {0, 0, 4, 0};  // still P = (1/2, 1/2)
  expect_near(run(s).dk, {0, 0, 0.5, 0, 0, 0, -0.5, 0}, 1e-6, "dK = dS^T Q / 2");
}

}  // namespace
}  // namespace tilewise::contract
