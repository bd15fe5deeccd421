/// Every form that a CPU flash row may be tuned to is right: results beside the reference's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "harness/device_memory.h"
#include "harness/expected.h"
#include "harness/materialize.h"
#include "plan/choose.h"
#include "tilewise/runtime.h"

namespace tilewise {
namespace {

void expect_right(const std::vector<Expected>& all, const MaterializedCase& made,
                  const BackwardTensors* gradients, const Plan& plan) {
  CheckResult judged;
  for (const Expected& expected : all) {
    const ForwardTensors& f = made.host_forward();
    const Tensor& tensor = gradients == nullptr       ? (expected.name == "O" ? f.o : f.lse)
                           : expected.name == "dQ"    ? gradients->dq
                           : expected.name == "dK"    ? gradients->dk
                           : expected.name == "dbias" ? gradients->dbias
                                                      : gradients->dv;
    compare(expected, tensor, false, judged);
  }
  EXPECT_NE(judged.status, CheckStatus::failed)
      << plan.kernel << ' ' << plan.block_m << " x " << plan.block_n << ", " << plan.splits
      << " parts, " << plan.threads << " threads: " << judged.reason;
}

class Forms : public testing::TestWithParam<const char*> {};

TEST_P(Forms, AreAllRight) {
  const std::unique_ptr<DeviceMemory> memory = device_memory({});
  MaterializedCase made(parse_case(GetParam()), 5, *memory);
  Hardware machine = hardware();
  machine.threads = 3;
  const std::unique_ptr<Executor> pool = make_thread_pool(machine.threads);
  const Launch launch{.executor = pool.get()};
  const Problem p = make_problem(made.forward(), made.spec(), Purpose::run);
  const std::vector<Expected> forward_truth = expected_results(p, *pool);
  const std::vector<Plan> plans = all_forms(p, machine, {}, kernel_table());
  EXPECT_GE(plans.size(), 3U);
  for (const Plan& plan : plans) {
    made.poison_outputs();
    run(plan, made.forward(), made.spec(), launch);
    expect_right(forward_truth, made, nullptr, plan);
  }
  made.backward();
  made.set_forward_results(forward_truth[0].truth, forward_truth[1].truth);
  const BackwardTensors& tensors = made.backward();
  const Problem back = make_problem(tensors, made.spec(), Purpose::run);
  const std::vector<Expected> truth = expected_results(back, *pool);
  for (const Plan& plan : all_forms(back, machine, {}, kernel_table())) {
    made.poison_gradients();
    run(plan, tensors, made.spec(), launch);
    expect_right(truth, made, &tensors, plan);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Forms,
                         testing::Values("b2 h4/2 s150 d40 f32 causal", "h3 q97 k1100 d32 f32",
                                         "b2 h2 s260 d64 bf16 causal", "h2 q130 k2100 d32 bf16",
                                         "h2 q70 k600 d32 bf16 bias=1,1,q,k window=100,20",
                                         "h8/2 q1 k700 d64 f32", "h8/2 q3 k2100 d40 bf16 causal"));

/// The plan of a backward of this case for one thread of a CPU with AVX512_BF16.
Plan backward_plan(const char* line) {
  const std::unique_ptr<DeviceMemory> memory = device_memory({});
  MaterializedCase made(parse_case(line), 5, *memory);
  made.forward();
  const Problem p = make_problem(made.backward(), made.spec(), Purpose::plan);
  Hardware machine = hardware();
  machine.at_hand = false;
  machine.name = "AMD";
  machine.isa = "avx512bf16";
  machine.threads = 1;
  return choose(p, machine, {}, kernel_table());
}

TEST(ShortSequences, AreNotFilledUpToTilesOfBfloat16) {
  EXPECT_EQ(backward_plan("b9 h2 s16 d32 bf16").kernel, "flash_bwd_avx512");
  EXPECT_EQ(backward_plan("b9 h2 q16 k17 d32 bf16").kernel, "flash_bwd_avx512bf16");
}

/// Packed rows are as many as there are, to a multiple of 32: not 96, of which a batch of short
/// sequences would have six times its inputs' bytes.
TEST(ShortSequences, TakeLittleWorkspace) {
  const Plan plan = backward_plan("b40 h8 s24 d64 bf16");
  EXPECT_EQ(plan.kernel, "flash_bwd_avx512bf16");
  const std::int64_t packed = std::int64_t{40} * 8 * 32 * 64 * 4 * 2;  // Q and dO, twice
  const std::int64_t sums = std::int64_t{40} * 8 * 24 * (64 + 2) * 4;  // dQ, delta, LSE's low part
  EXPECT_LT(plan.workspace_bytes, packed + sums + (std::int64_t{2} << 20));
}

}  // namespace
}  // namespace tilewise
