/// The other tests of this room loop over the kernel table: this one sees to it that the loop is
/// not empty.
#include <set>

#include "contract/harness.h"

namespace tilewise::contract {
namespace {

std::set<std::string> implementations(Pass pass) {
  std::set<std::string> names;
  for (const Row& row : cpu_rows(pass)) names.insert(row.implementation);
  return names;
}

TEST(Rows, TheTableHasEveryImplementation) {
  EXPECT_EQ(implementations(Pass::forward),
            (std::set<std::string>{"baseline", "eager", "fused", "flash", "reference"}));
  EXPECT_EQ(implementations(Pass::backward),
            (std::set<std::string>{"eager", "fused", "flash", "reference"}));
}

TEST(Rows, FlashIsTheFreeChoice) {
  const Trial s = trial(DType::bfloat16, 1, 2, 1, 5, 7, 16, 16).fill(1);
  EXPECT_EQ(run_forward(s, "").plan.implementation, "flash");
  Row free_choice{.kernel = "", .implementation = "flash"};
  EXPECT_EQ(run_backward(s, free_choice).plan.implementation, "flash");
}

/// The flash kernel that a bfloat16 problem is planned for.
std::string bf16_kernel(Pass pass, const std::string& cpu, const std::string& isa) {
  constexpr std::int64_t kRows = 2048;
  const Sizes sizes{1, 4, kRows, 128};
  Owned x(DType::bfloat16, sizes), lse(DType::float32, {1, 4, kRows});
  Hardware machine = hardware();
  machine.at_hand = false;  // this one's would be measured
  machine.name = cpu;
  machine.isa = isa;
  const Tensor t = x.tensor();
  if (pass == Pass::forward) {
    return plan(ForwardTensors{t, t, t, t, {}, {}}, {}, {}, &machine).kernel;
  }
  const BackwardTensors all{
      .q = t, .k = t, .v = t, .o = t, .lse = lse.tensor(), .d_o = t, .dq = t, .dk = t, .dv = t};
  return plan(all, {}, {}, &machine).kernel;
}

/// vdpbf16ps is fast on AMD's Zen and slow on Intel's CPUs, where AMX may be missing or masked:
/// 202.8 ms beside 115.5 of float32 vectors.
TEST(Rows, BfloatDotProductsWhereTheyAreFast) {
  for (const auto& [pass, stem] :
       {std::pair{Pass::forward, "flash_fwd_"}, std::pair{Pass::backward, "flash_bwd_"}}) {
    const std::string name(stem);
    EXPECT_EQ(bf16_kernel(pass, "AMD EPYC", "avx512bf16"), name + "avx512bf16");
    EXPECT_EQ(bf16_kernel(pass, "INTEL(R) XEON(R) PROCESSOR", "avx512bf16"), name + "avx512");
    EXPECT_EQ(bf16_kernel(pass, "INTEL(R) XEON(R) PROCESSOR", "amx"), name + "amx");
  }
}

TEST(Rows, EveryImplementationCanRunHere) {
  const Trial s = trial(DType::float32, 1, 1, 1, 3, 3, 8, 8);
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    std::set<std::string> able;
    for (const Row& row : cpu_rows(pass)) {
      if (!refuses(s, row, pass)) able.insert(row.implementation);
    }
    EXPECT_EQ(able, implementations(pass)) << pass_name(pass);
  }
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Cpu, Forward, testing::ValuesIn(cpu_rows(Pass::forward)), row_test_name);
INSTANTIATE_TEST_SUITE_P(Cpu, TypedForward, testing::ValuesIn(cpu_rows(Pass::forward)),
                         row_test_name);
INSTANTIATE_TEST_SUITE_P(Cpu, TypedBackward, testing::ValuesIn(cpu_rows(Pass::backward)),
                         row_test_name);
INSTANTIATE_TEST_SUITE_P(Cpu, Backward, testing::ValuesIn(cpu_rows(Pass::backward)), row_test_name);

}  // namespace tilewise::contract
