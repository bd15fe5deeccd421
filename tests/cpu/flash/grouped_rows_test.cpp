/// One query of many heads that share keys, as rows of one head: which kernel runs, and that its
/// bits do not depend on the threads.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cpu/micro/isa.h"
#include "harness/device_memory.h"
#include "harness/materialize.h"
#include "plan/choose.h"
#include "tilewise/runtime.h"

namespace tilewise {
namespace {

class GroupedRows : public testing::Test {
 protected:
  void SetUp() override {
    if (cpu::best_isa() < cpu::Isa::avx512bf16) GTEST_SKIP() << "no bfloat16 products";
  }
  static Plan plan_of(const MaterializedCase& made, int threads) {
    Hardware machine = hardware();
    machine.threads = threads;
    return choose(make_problem(made.forward(), made.spec(), Purpose::run), machine, {},
                  kernel_table());
  }
  static bool takes_bf16(const char* text, int threads) {
    const std::unique_ptr<DeviceMemory> memory = device_memory({});
    const std::string kernel =
        plan_of(MaterializedCase(parse_case(text), 5, *memory), threads).kernel;
    return kernel == "flash_fwd_avx512bf16" || kernel == "flash_fwd_amx";
  }
};

TEST_F(GroupedRows, FillTilesWhereHeadsAreAlike) {
  EXPECT_TRUE(takes_bf16("b1 h128/1 q1 k900 d64 bf16 pass=fwd", 4));
  EXPECT_TRUE(takes_bf16("b2 h32/1 q1 k900 d64 bf16 lengths=900,7 causal pass=fwd", 4));
  // Few rows of a key head read the keys where they lie.
  EXPECT_FALSE(takes_bf16("b1 h96/4 q1 k900 d64 bf16 pass=fwd", 4));
  // Heads and rows are not alike, or the number of threads must not matter.
  EXPECT_FALSE(takes_bf16("b1 h128/1 q1 k900 d64 bf16 sink pass=fwd", 4));
  EXPECT_FALSE(takes_bf16("b1 h128/1 q1 k900 d64 bf16 window=100,0 pass=fwd", 4));
  EXPECT_FALSE(takes_bf16("b1 h128/1 q1 k900 d64 bf16 deterministic pass=fwd", 4));
  // Too few tasks.
  EXPECT_FALSE(takes_bf16("b1 h32/1 q1 k9000 d64 bf16 pass=fwd", 16));
}

TEST_F(GroupedRows, SmallerTasksHaveTheSameBits) {
  const std::unique_ptr<DeviceMemory> memory = device_memory({});
  MaterializedCase made(parse_case("b1 h128/1 q1 k3000 d64 bf16 pass=fwd"), 5, *memory);
  std::vector<std::vector<std::byte>> all;
  for (const int threads : {1, 4}) {
    const Plan plan = plan_of(made, threads);
    EXPECT_EQ(plan.block_m, threads == 1 ? 128 : 32);
    const std::unique_ptr<Executor> pool = make_thread_pool(threads);
    made.poison_outputs();
    run(plan, made.forward(), made.spec(), {.executor = pool.get()});
    const Tensor& o = made.forward().o;
    all.emplace_back(static_cast<std::size_t>(o.numel() * 2));
    std::memcpy(all.back().data(), o.data, all.back().size());
  }
  EXPECT_EQ(all[0], all[1]);
}

}  // namespace
}  // namespace tilewise
