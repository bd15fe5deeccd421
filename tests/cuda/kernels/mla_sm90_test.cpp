// mla_sm90 on the host: what it takes and refuses, boxes, parts of the keys.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/kernels/mla_sm90/choice.h"
#include "cuda/kernels/mla_sm90/row.h"
#include "cuda/machine.h"
#include "harness/case.h"
#include "harness/materialize.h"
#include "plan/choose.h"
#include "problem/problem.h"

namespace tilewise::cuda {
namespace {

const std::string kLatent = " d576 dv512 bf16 layout=latent ";

/// Shapes alone: pointers are not to be read.
Problem problem(const std::string& line) {
  const PlannedCase planned(parse_case(line + " pass=fwd"), kCuda);
  return make_problem(planned.forward(), planned.spec(), Purpose::plan);
}
MlaChoice choice(const std::string& line) { return mla_choose(problem(line), machine(90)); }
std::string refusal(const std::string& line) { return mla_refusal(problem(line), machine(90)); }

TEST(MlaSm90, ThePlanTakesIt) {
  for (const char* line :
       {"b2 h16/1 q1 k2048", "b2 h128/1 q2 k2048 causal lengths=9,2048 paged=64"})
    EXPECT_EQ(choose(problem(line + kLatent), machine(90), {}, kernel_table()).kernel,
              "flash_mla_sm90");
}

TEST(MlaSm90, RefusesByName) {
  EXPECT_EQ(refusal("b2 h128/1 q2 k2048 causal window=99,none sink" + kLatent), "");
  EXPECT_EQ(refusal("b2 h16/1 q1 k2048 lengths=2048,9 paged=16" + kLatent), "");
  EXPECT_EQ(refusal("b2 h16/2 q1 k2048 d576 dv512 f16 layout=latent"), "");
  EXPECT_EQ(refusal("b2 h16/1 q1 k2048 d576 dv512 bf16 layout=bshd"),
            "a V that is not the first 512 columns of K is not supported by this kernel");
  EXPECT_EQ(refusal("b2 h16/1 q1 k2048 d128 bf16"),
            "head dims other than 576 of K and 512 of V are not supported by this kernel");
  EXPECT_NE(refusal("b2 h16/1 q1 k2048 d576 dv512 f32 layout=latent"), "");
  EXPECT_NE(refusal("b2 h16/1 q1 k2048 lengths=2048,9 paged=4" + kLatent), "");
  EXPECT_EQ(refusal("b2 h16/1 q1 k2048 window=-1,none" + kLatent), "");
  EXPECT_NE(refusal("b2 h16/1 q1 k2048 lengths=2048,9 paged=16 window=-1,none" + kLatent), "");
  EXPECT_NE(refusal("b2 h16/1 q1 k2048 softcap=5" + kLatent), "");
  EXPECT_NE(refusal("b2 h16/1 q1 k2048 alibi" + kLatent), "");
  EXPECT_NE(refusal("b2 h16/1 q1 k2048 scale=-1" + kLatent), "");
  EXPECT_NE(refusal("b2 h16/1 q1 k2048 bias=1,h,q,k" + kLatent), "");
  EXPECT_NE(refusal("packed=3,5 h16/1" + kLatent), "");
  EXPECT_NE(mla_refusal(problem("b2 h16/1 q1 k2048" + kLatent), machine(80)), "");
}

TEST(MlaSm90, ValuesElsewhereAreNoneOfK) {
  alignas(16) static unsigned short memory[2];
  Problem p = problem("b2 h16/1 q1 k2048" + kLatent);
  p.k.data = p.v.data = memory;
  EXPECT_EQ(mla_refusal(p, machine(90)), "");
  p.v.data = memory + 1;
  EXPECT_NE(mla_refusal(p, machine(90)), "");
  p.v.data = memory;
  p.v.strides[2] = 512;
  EXPECT_NE(mla_refusal(p, machine(90)), "");
}

TEST(MlaSm90, BoxesHaveEightKeysAndAThirdOfTheColumns) {
  static std::vector<TensorMapSpec> specs;
  specs.clear();
  const Problem p = problem("b3 h16/1 q1 k2048 lengths=2048,9,1 paged=16" + kLatent);
  mla_sm90::Args args;
  mla_fill(args, p, choice("b3 h16/1 q1 k2048 lengths=2048,9,1 paged=16" + kLatent),
           [](tile::TensorMapBytes&, const TensorMapSpec& spec) { specs.push_back(spec); });
  ASSERT_EQ(specs.size(), 1U);
  const TensorMapSpec& keys = specs.front();
  EXPECT_EQ(keys.rank, 5);
  EXPECT_EQ((std::vector<std::int64_t>(keys.sizes.begin(), keys.sizes.begin() + 4)),
            (std::vector<std::int64_t>{64, 16, 9, 1}));
  EXPECT_EQ((std::vector<std::int32_t>(keys.box.begin(), keys.box.end())),
            (std::vector<std::int32_t>{64, 8, 3, 1, 1}));
  EXPECT_EQ(args.part_columns, 512);
}

TEST(MlaSm90, ABlockFitsAMultiprocessor) {
  EXPECT_LE(mla_sm90::SharedPlan{}.bytes, 227 * 1024);
  EXPECT_EQ(mla_sm90::SharedPlan{}.k % 1024, 0);
  EXPECT_EQ(mla_sm90::SharedPlan::kBox % 1024, 0);
}

/// Tiles of 64 rows, and parts that give every multiprocessor as much.
TEST(MlaSm90, AtMost16RowsHaveProductsOfTheirOwn) {
  EXPECT_TRUE(choice("b1 h16/1 q1 k4096" + kLatent).config.few);
  EXPECT_TRUE(choice("b1 h16/2 q2 k4096" + kLatent).config.few);
  EXPECT_FALSE(choice("b1 h17/1 q1 k4096" + kLatent).config.few);
  const MlaChoice c = choice("b1 h16/1 q1 k4096" + kLatent);
  EXPECT_LE(mla_unit(c.config).shared_bytes, 227 * 1024);
}

TEST(MlaSm90, PartsFillTheCard) {
  Hardware hopper = machine(90);
  hopper.bandwidth_gbps = 4320.0;  // an H200
  const auto items = [&](const std::string& line) {
    const Problem p = problem(line + kLatent);
    const MlaChoice c = mla_choose(p, hopper);
    return static_cast<int>(p.batch * p.heads_k) * c.items.row_tiles * c.items.most_parts;
  };
  EXPECT_EQ(choice("b1 h128/1 q2 k4096" + kLatent).items.row_tiles, 4);
  EXPECT_EQ(choice("b1 h16/1 q1 k4096" + kLatent).items.row_tiles, 1);
  for (const char* line : {"b1 h16/1 q1 k65536", "b16 h16/1 q1 k8192", "b4 h128/1 q1 k16384"}) {
    EXPECT_GE(items(line), 100) << line;
    EXPECT_LE(items(line), 264) << line;
  }
}

/// CONTRACT 14
TEST(MlaSm90, DeterministicPartsDoNotDependOnTheBatch) {
  const auto keys = [](const std::string& batch) {
    return choice(batch + " h128/1 q1 k16384 deterministic" + kLatent).items.keys;
  };
  EXPECT_EQ(keys("b1"), keys("b64"));
  EXPECT_NE(choice("b1 h128/1 q1 k16384" + kLatent).items.keys,
            choice("b64 h128/1 q1 k16384" + kLatent).items.keys);
}

}  // namespace
}  // namespace tilewise::cuda
