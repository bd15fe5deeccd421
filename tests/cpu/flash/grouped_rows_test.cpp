/// One query of many heads that share keys, as rows of one head: which kernel runs, and that its
/// bits do not depend on the threads.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "cpu/flash/decode_geometry.h"
#include "cpu/micro/bf16_micro.h"
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
  static bool fills_tiles(const char* text, int threads) {
    const std::unique_ptr<DeviceMemory> memory = device_memory({});
    const Plan plan = plan_of(MaterializedCase(parse_case(text), 5, *memory), threads);
    const bool bf16 = plan.kernel == "flash_fwd_avx512bf16" || plan.kernel == "flash_fwd_amx";
    return bf16 && plan.block_n > cpu::kMostListedKeys;
  }
};

TEST_F(GroupedRows, FillTilesWhereHeadsAreAlike) {
  EXPECT_TRUE(fills_tiles("b1 h128/1 q1 k900 d64 bf16 pass=fwd", 4));
  EXPECT_TRUE(fills_tiles("b2 h48/1 q1 k900 d64 bf16 lengths=900,7 causal pass=fwd", 4));
  // Few rows of a key head read the keys where they lie.
  EXPECT_FALSE(fills_tiles("b1 h96/4 q1 k900 d64 bf16 pass=fwd", 4));
  // Heads and rows are not alike, or the number of threads must not matter.
  EXPECT_FALSE(fills_tiles("b1 h128/1 q1 k900 d64 bf16 sink pass=fwd", 4));
  EXPECT_FALSE(fills_tiles("b1 h128/1 q1 k900 d64 bf16 window=100,0 pass=fwd", 4));
  EXPECT_FALSE(fills_tiles("b1 h128/1 q1 k900 d64 bf16 deterministic pass=fwd", 4));
  // Too few tasks.
  EXPECT_FALSE(fills_tiles("b1 h32/1 q1 k9000 d64 bf16 pass=fwd", 16));
}

/// Rows that fill no tile read bfloat16 keys where they lie; one row alone in float32.
TEST_F(GroupedRows, OthersReadKeys) {
  if (cpu::bf16_product_rate_avx512bf16() < 1.5) GTEST_SKIP() << "slow products of bfloat16";
  const auto kernel = [](const char* text) {
    const std::unique_ptr<DeviceMemory> memory = device_memory({});
    Hardware machine = hardware();
    machine.isa = "avx512bf16";
    machine.threads = 4;
    const MaterializedCase made(parse_case(text), 5, *memory);
    return choose(make_problem(made.forward(), made.spec(), Purpose::run), machine, {},
                  kernel_table())
        .kernel;
  };
  for (const char* text :
       {"b1 h96/4 q1 k900 d64 bf16 pass=fwd", "b1 h128/1 q1 k900 d64 bf16 sink pass=fwd",
        "b1 h128/1 q2 k900 d64 bf16 pass=fwd", "b2 h8/2 q5 k900 d40 bf16 causal pass=fwd",
        "b1 h4 q1 k96 d64 bf16 paged=16 lengths=96 pass=fwd"}) {
    EXPECT_EQ(kernel(text), "flash_fwd_avx512bf16") << text;
  }
  EXPECT_EQ(kernel("b1 h8 q1 k900 d64 bf16 pass=fwd"), "flash_fwd_avx512");
  EXPECT_EQ(kernel("b1 h8/2 q1 k900 d64 bf16 dropout=0.5 pass=fwd"), "flash_fwd_avx512");
}

/// AMX tiles read keys for some rows, and for any number of long ones; one short row is float32.
TEST_F(GroupedRows, TilesReadKeys) {
  const auto plan = [](const char* text) {
    const std::unique_ptr<DeviceMemory> memory = device_memory({});
    Hardware machine = hardware();
    machine.isa = "amx";
    machine.threads = 1;
    const MaterializedCase made(parse_case(text), 5, *memory);
    return choose(make_problem(made.forward(), made.spec(), Purpose::run), machine, {},
                  kernel_table());
  };
  for (const char* text :
       {"b1 h8/2 q1 k900 d64 bf16 pass=fwd", "b1 h64/8 q6 k900 d64 bf16 causal pass=fwd",
        "b1 h32/1 q1 k900 d64 bf16 pass=fwd", "b1 h128/1 q1 k900 d160 bf16 pass=fwd"}) {
    EXPECT_EQ(plan(text).kernel, "flash_fwd_amx") << text;
    EXPECT_LE(plan(text).block_n, cpu::kMostListedKeys) << text;
  }
  EXPECT_GT(plan("b1 h128/1 q1 k900 d64 bf16 pass=fwd").block_n, cpu::kMostListedKeys);
  const bool fast = cpu::bf16_product_rate_avx512bf16() > 1.5;
  // Few rows, few keys; two rows of heads that lie apart, four whose ends would be copied.
  for (const char* text :
       {"b1 h4 q1 k96 d64 bf16 paged=16 lengths=96 pass=fwd", "b1 h2 s5 d64 bf16 pass=fwd",
        "b1 h16/8 q1 k900 d128 bf16 pass=fwd", "b1 h8/2 q1 k900 d80 bf16 pass=fwd"}) {
    EXPECT_EQ(plan(text).kernel, fast ? "flash_fwd_avx512bf16" : "flash_fwd_avx512") << text;
  }
  EXPECT_EQ(plan("b1 h16/8 q1 k900 d128 bf16 layout=bshd pass=fwd").kernel, "flash_fwd_amx");
}

/// Where a sanitizer's checks were measured instead of the instructions, the rate was up to 2.
TEST_F(GroupedRows, IntelsProductsAreSlowInEveryBuild) {
  if (hardware().name.find("Intel") == std::string::npos) GTEST_SKIP() << "a CPU of others";
  for (int i = 0; i < 20; ++i) EXPECT_LT(cpu::bf16_product_rate_avx512bf16(), 1.5);
}

/// Strips of heads are shorter where threads are many.
TEST_F(GroupedRows, ReadingHasTheSameBitsForAnyThreads) {
  const std::unique_ptr<DeviceMemory> memory = device_memory({});
  MaterializedCase made(
      parse_case("b1 h36/1 q5 k300 d40 bf16 deterministic scale=40 causal pass=fwd"), 5, *memory);
  std::vector<std::vector<std::byte>> all;
  for (const int threads : {1, 3, 16}) {
    const Plan plan = plan_of(made, threads);
    EXPECT_LE(plan.block_n, cpu::kMostListedKeys);
    const std::unique_ptr<Executor> pool = make_thread_pool(threads);
    made.poison_outputs();
    run(plan, made.forward(), made.spec(), {.executor = pool.get()});
    // float32 shows what bfloat16 rounds away.
    const Tensor& lse = made.forward().lse;
    all.emplace_back(static_cast<std::size_t>(lse.numel() * 4));
    std::memcpy(all.back().data(), lse.data, all.back().size());
  }
  EXPECT_EQ(all[0], all[1]);
  EXPECT_EQ(all[0], all[2]);
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
