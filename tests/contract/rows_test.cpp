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
