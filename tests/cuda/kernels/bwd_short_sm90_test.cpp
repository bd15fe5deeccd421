// The backward of short sequences, without a GPU: configs, jobs, refusals, workspace, time model.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "cuda/ask_row.h"
#include "cuda/kernels/bwd_short_sm90/row.h"
#include "cuda/machine.h"

namespace tilewise::cuda {
namespace {

using bwd_short_sm90::Config;
using bwd_short_sm90::Mask;
using bwd_short_sm90::SharedPlan;

Problem problem(std::int64_t batch, std::int64_t heads, std::int64_t seq, std::int64_t dim,
                bool causal) {
  static std::byte memory[16];
  Problem p;
  p.pass = Pass::backward;
  p.device = {DeviceType::cuda, 0};
  p.dtype = DType::bfloat16;
  p.batch = batch;
  p.heads_q = p.heads_k = heads;
  p.seq_q = p.seq_k = p.total_q = p.total_k = seq;
  p.head_dim = p.head_dim_v = dim;
  p.scale = 0.125F;
  if (causal) p.causal = Causal::bottom_right, p.right = 0;
  p.q = p.k = p.v = p.o = p.d_o = p.dq = p.dk = p.dv =
      Tensor::bshd(memory, DType::bfloat16, batch, seq, heads, dim, p.device);
  p.lse = Tensor::contiguous(memory, DType::float32, {batch, heads, seq}, p.device);
  return p;
}

Hardware h200() { return machine(90, 4000.0); }

std::string refusal(const Problem& p) { return refusal_by(kFlashBackwardShortSm90, p, h200()); }

TEST(BwdShortSm90, EveryConfigFitsSharedMemory) {
  for (const std::int64_t dim : {16, 64, 96, 128}) {
    for (const std::int64_t dim_v : {16, 64, 96, 128}) {
      Problem p = problem(1, 2, 200, dim, true);
      p.head_dim_v = dim_v;
      for (const ShortJobs jobs :
           {ShortJobs::key_heads, ShortJobs::query_heads, ShortJobs::passes}) {
        const Config config = bwd_short_sm90_config(p, jobs);
        const SharedPlan plan(config);
        EXPECT_LE(plan.bytes, SharedPlan::kRoom) << dim << ' ' << dim_v;
        // The next pass's rows come early: into the second buffer, beside halves where it is large.
        const bool large = std::min(dim, dim_v) > 64, shares = jobs == ShortJobs::query_heads;
        EXPECT_EQ(config.halves(), large && shares) << dim << ' ' << dim_v;
        EXPECT_EQ(config.stages, config.halves() ? 3 : 4);
        EXPECT_EQ(config.kept, large && !shares ? 1 : 2) << dim << ' ' << dim_v;
        EXPECT_EQ(plan.slots % 16, 0);
        for (const int at : {plan.kept, plan.stages, plan.stage, plan.stages_v})
          EXPECT_EQ(at % 1024, 0);
        // The registers of a block's three warpgroups are those that it starts with.
        EXPECT_EQ(2 * config.registers() + config.other_registers(), 3 * 168);
      }
    }
  }
}

TEST(BwdShortSm90, SmallProblemsAreExact) {
  EXPECT_FALSE(
      bwd_short_sm90_config(problem(8, 12, 256, 64, true), ShortJobs::key_heads).two_plane);
  Config config = bwd_short_sm90_config(problem(8, 12, 128, 64, false), ShortJobs::key_heads);
  EXPECT_TRUE(config.two_plane);
  EXPECT_FALSE(config.refined);
  // Under a mask some rows see few keys: there rounding of O shows in delta.
  config = bwd_short_sm90_config(problem(8, 12, 128, 64, true), ShortJobs::key_heads);
  EXPECT_TRUE(config.two_plane && config.refined);
  EXPECT_EQ(config.mask, Mask::right);
}

TEST(BwdShortSm90, FewHeadsAreCutIntoPasses) {
  const Problem few = problem(1, 12, 512, 64, false), many = problem(16, 16, 256, 64, false);
  constexpr ShortJobs kHeads = ShortJobs::key_heads, kPasses = ShortJobs::passes;
  EXPECT_LT(bwd_short_sm90_ms(few, kPasses, h200()), bwd_short_sm90_ms(few, kHeads, h200()));
  EXPECT_EQ(bwd_short_sm90_jobs(few, kHeads), 12);
  EXPECT_EQ(bwd_short_sm90_jobs(few, kPasses), 12 * (4 + 4));
  EXPECT_EQ(bwd_short_sm90_jobs(many, kHeads), 256);
  Problem grouped = problem(1, 12, 512, 64, false);
  grouped.heads_k = 3;
  EXPECT_EQ(bwd_short_sm90_jobs(grouped, kPasses), 3 * 4 + 12 * 4);
  // Rows behind the last packed sequence are one more.
  Problem packed = problem(1, 12, 512, 64, false);
  packed.packed = true;
  packed.batch = 5;
  EXPECT_EQ(bwd_short_sm90_jobs(packed, kHeads), 12 * 6);
}

TEST(BwdShortSm90, HeadsOfAGroupShareWhereJobsAreFew) {
  Problem p = problem(4, 32, 128, 128, true);
  p.heads_k = 8;
  EXPECT_EQ(bwd_short_sm90_jobs(p, ShortJobs::query_heads), 4 * 32);
  const Config config = bwd_short_sm90_config(p, ShortJobs::query_heads);
  EXPECT_TRUE(config.shares && config.refined && config.halves());
  // A counter for each warpgroup's pass over keys; dK and dV of each query head in float32.
  const Cost cost = cost_by(kFlashBackwardShortSm90, p, h200());
  ASSERT_EQ(cost.memory.size(), 2U);
  EXPECT_EQ(cost.memory[0].bytes, 8 * 4 * 8 * 2);
  EXPECT_EQ(cost.memory[1].bytes, 4LL * 32 * 128 * (128 + 128) * 4);
  // What many jobs hand over would not stay in the L2 cache.
  Problem many = problem(16, 32, 128, 128, true);
  many.heads_k = 8;
  EXPECT_TRUE(cost_by(kFlashBackwardShortSm90, many, h200()).memory.size() <= 1U);
}

TEST(BwdShortSm90, PackedPassesAreLoadedEarly) {
  Problem p = problem(64, 16, 384, 128, true);
  p.packed = true;
  p.total_q = p.total_k = 64 * 256;
  EXPECT_TRUE(bwd_short_sm90_config(p, ShortJobs::key_heads).halves());
  // Statistics of so many rows leave no room for a second buffer.
  p.heads_k = 4;
  EXPECT_FALSE(bwd_short_sm90_config(p, ShortJobs::key_heads).halves());
}

TEST(BwdShortSm90, WorkspaceIsACounterOrNothing) {
  EXPECT_TRUE(
      cost_by(kFlashBackwardShortSm90, problem(1, 12, 128, 64, true), h200()).memory.empty());
  const Cost cost = cost_by(kFlashBackwardShortSm90, problem(16, 16, 256, 64, false), h200());
  ASSERT_EQ(cost.memory.size(), 1U);
  EXPECT_EQ(cost.memory[0].bytes, 8);
}

TEST(BwdShortSm90, Refusals) {
  const auto expect = [](const Problem& p, const char* words) {
    EXPECT_NE(refusal(p).find(words), std::string::npos) << refusal(p);
  };
  EXPECT_EQ(refusal(problem(8, 12, 256, 64, true)), "");
  EXPECT_EQ(refusal(problem(8, 12, 2048, 64, true)), "");
  expect(problem(8, 12, 2049, 64, true), "more than 2048 query rows to a key head");
  Problem p = problem(8, 12, 1024, 64, true);
  p.heads_k = 4;
  expect(p, "more than 2048 query rows to a key head");
  expect(problem(8, 12, 256, 136, true), "a head dim above 128");
  p = problem(8, 12, 256, 128, true);
  p.head_dim_v = 100;
  expect(p, "not a multiple of 8");
  p = problem(8, 12, 256, 64, true);
  p.softcap = 30.0;
  expect(p, "a softcap, ALiBi, bias");
  for (const float scale : {-0.3F, 0.0F, -0.0F, 1e-31F}) {
    p = problem(8, 12, 256, 64, true);
    p.scale = scale;
    expect(p, "a scale that is not positive");
  }
  p = problem(8, 12, 256, 64, true);
  p.mask.rank = 4;
  expect(p, "bool masks");
  p = problem(8, 12, 256, 64, true);
  p.key_lengths = Tensor::contiguous(p.q.data, DType::int32, {p.batch}, p.device);
  expect(p, "key lengths");
  p = problem(8, 12, 256, 64, true);
  p.seq_k = p.total_k = 128;  // the first rows see no key
  expect(p, "leaves rows no key");
  p = problem(8, 12, 256, 64, true);
  p.d_o.strides[2] = 0;
  expect(p, "dO cannot be copied by TMA");
  p = problem(8, 12, 256, 64, true);
  p.dtype = DType::float32;
  expect(p, "float32");
}

TEST(BwdShortSm90, UnitNamesTheProductsItNeeds) {
  const Config config = bwd_short_sm90_config(problem(1, 12, 512, 128, true), ShortJobs::passes);
  const KernelUnit unit = bwd_short_sm90_unit(config);
  EXPECT_EQ(unit.threads, 384);
  EXPECT_NE(unit.config.find(".cut = true"), std::string::npos);
  for (const char* text : {"m64n64k16", "m64n128k16", "multiply_shared", "multiply_register"}) {
    EXPECT_NE(unit.prelude.find(text), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tilewise::cuda
