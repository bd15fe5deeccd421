// decode_sm90 on the host: how K and V come, parts of the keys, refusals.
#include <gtest/gtest.h>

#include <string>

#include "cuda/kernels/decode_sm90/choice.h"
#include "cuda/machine.h"
#include "harness/case.h"
#include "harness/materialize.h"
#include "plan/choose.h"
#include "problem/problem.h"

namespace tilewise::cuda {
namespace {

/// Shapes alone: pointers are not to be read.
Problem problem(const std::string& line) {
  const PlannedCase planned(parse_case(line + " pass=fwd"), kCuda);
  return make_problem(planned.forward(), planned.spec(), Purpose::plan);
}
DecodeChoice choice(const std::string& line) { return decode_choose(problem(line), machine(90)); }
std::string refusal(const std::string& line) { return decode_refusal(problem(line), machine(90)); }

TEST(DecodeSm90, BoxesEndWherePagesDo) {
  const auto rows = [](const char* page) {
    const DecodeChoice c =
        choice("b2 h8/2 q1 k2048 d128 bf16 layout=bshd lengths=2048,9 paged=" + std::string(page));
    EXPECT_TRUE(c.config.paged);
    return c.config.box_rows;
  };
  EXPECT_EQ(rows("256"), 64);
  EXPECT_EQ(rows("64"), 64);
  EXPECT_EQ(rows("48"), 16);
  EXPECT_EQ(rows("16"), 16);
  EXPECT_EQ(rows("24"), 0);
  EXPECT_EQ(rows("7"), 0);
  EXPECT_EQ(rows("1"), 0);
}

TEST(DecodeSm90, ABoxHasAllColumnsWherePanelsDivideThem) {
  const auto whole = [](const char* dims) {
    return choice("b2 h8/2 q1 k2048 bf16 " + std::string(dims)).config.whole_rows;
  };
  EXPECT_TRUE(whole("d128"));
  EXPECT_TRUE(whole("d40 dv256"));
  EXPECT_FALSE(whole("d96"));
  EXPECT_FALSE(whole("d64 dv80"));
}

TEST(DecodeSm90, AStrideOfNothingComesByRows) {
  EXPECT_EQ(choice("b2 h8/2 q1 k2048 d128 bf16").config.box_rows, 64);
  EXPECT_EQ(choice("b2 h8/2 q1 k2048 d128 bf16 layout=expanded").config.box_rows, 0);
}

TEST(DecodeSm90, RowsOfATile) {
  EXPECT_EQ(choice("b2 h16/1 q1 k2048 d128 bf16").config.row_warps, 1);
  EXPECT_EQ(choice("b2 h8/1 q3 k2048 d128 bf16").config.row_warps, 2);
  EXPECT_EQ(choice("b2 h8/1 q8 k2048 d128 bf16").config.row_warps, 4);
  EXPECT_EQ(choice("b2 h8/1 q8 k2048 d256 bf16").config.row_warps, 2);
  EXPECT_EQ(choice("b2 h8/1 q8 k2048 d256 bf16").row_tiles, 2);
}

/// Parts of `keys` keys as tile/key_parts.cuh counts them.
TEST(DecodeSm90, PartsOfAnEntry) {
  const auto parts = [](const std::string& line, std::int64_t keys) {
    return decode_with_parts(problem(line), keys, machine(90)).most_parts;
  };
  EXPECT_EQ(parts("b2 h8/2 q1 k1000 d64 bf16", 1000), 1);
  EXPECT_EQ(parts("b2 h8/2 q1 k1000 d64 bf16", 256), 4);
  EXPECT_EQ(parts("b2 h8/2 q1 k1000 d64 bf16 causal window=99,none", 64), 2);  // keys 900 to 999
  EXPECT_EQ(parts("b2 h8/2 q2 k1000 d64 bf16 causal_top_left", 64), 1);        // keys 0 and 1
  // Where an entry ends is not known: its keys may begin anywhere in a part.
  EXPECT_EQ(parts("b2 h8/2 q1 k1000 d64 bf16 lengths=1000,7 causal window=99,none", 64), 3);
  EXPECT_EQ(parts("b2 h8/2 q1 k1000 d64 bf16 lengths=1000,7", 64), 16);
}

TEST(DecodeSm90, TwoBlocksFitAMultiprocessor) {
  for (const char* dims : {"d64", "d128", "d192", "d256", "d128 dv64", "d192 dv128"}) {
    const DecodeChoice c = choice("b2 h8/2 q1 k2048 bf16 " + std::string(dims));
    const int bytes = decode_sm90::SharedPlan(c.config).bytes;
    EXPECT_GE(c.config.stages, 3) << dims;
    EXPECT_LE(bytes, 227 * 1024) << dims;
    EXPECT_LE(c.config.blocks * (bytes + 1024), 228 * 1024) << dims;
  }
}

TEST(DecodeSm90, PagesAndLengthsAreTakenByThePlan) {
  const auto chosen = [](const std::string& line) {
    return choose(problem(line), machine(90), {}, kernel_table()).kernel;
  };
  EXPECT_EQ(chosen("b16 h32/4 q1 k8192 d128 bf16 layout=bshd paged=16 lengths=8192,9,4000,8192,1,"
                   "700,8000,64,8192,9,4000,8192,1,700,8000,64"),
            "flash_decode_sm90");
  // As many keys for every entry, side by side: the kernel of long rows is faster.
  EXPECT_NE(chosen("b16 h32/4 q1 k8192 d128 bf16"), "flash_decode_sm90");
  EXPECT_NE(chosen("b4 h16 s2048 d128 bf16 causal"), "flash_decode_sm90");
}

TEST(DecodeSm90, RefusesByName) {
  EXPECT_EQ(refusal("b2 h8/2 q1 k2048 d128 bf16 lengths=2048,9 paged=16 causal sink softcap=5"),
            "");
  EXPECT_NE(refusal("b2 h8/2 q1 k2048 d128 f32"), "");
  EXPECT_NE(refusal("b2 h8/2 q1 k2048 d128 bf16 bias=1,h,q,k"), "");
  EXPECT_NE(refusal("b2 h8/2 q1 k2048 d127 bf16"), "");
  EXPECT_EQ(refusal("b2 h8/1 q32 k2048 d128 bf16"), "");
  EXPECT_NE(refusal("b2 h8/1 q33 k2048 d128 bf16"), "");
  EXPECT_NE(refusal("packed=3,5 h8/2 d128 bf16"), "");
  EXPECT_NE(refusal("b2 h8/2 q1 k2048 d128 bf16 layout=transposed"), "");
  EXPECT_NE(decode_refusal(problem("b2 h8/2 q1 k2048 d128 bf16"), machine(80)), "");
}

}  // namespace
}  // namespace tilewise::cuda
