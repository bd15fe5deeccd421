// decode_sm90 on the host: how K and V come, parts of the keys, refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/decode_sm90/choice.h"
#include "cuda/kernels/decode_sm90/fill.h"
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

std::vector<TensorMapSpec> maps;  // of the last fill
void keep_map(tile::TensorMapBytes& /*to*/, const TensorMapSpec& spec) { maps.push_back(spec); }

/// A box reads up to 384 bytes of a row one after another, and L2 fetches no more than it asks for.
TEST(DecodeSm90, ABoxHasPanelsOfARowNextToEachOther) {
  const auto panels = [](const char* dims) {
    const Problem p = problem("b2 h8/2 q1 k2048 bf16 layout=bshd " + std::string(dims));
    decode_sm90::Args args;
    maps.clear();
    decode_fill(args, p, decode_choose(p, machine(90)), keep_map);
    for (const TensorMapSpec& map : maps) {
      EXPECT_EQ(map.promotion, TensorMapSpec::Promotion::bytes128);
      EXPECT_EQ(map.strides[1], 128);
      EXPECT_EQ(map.box[2], 64);
    }
    return std::pair{maps[0].box[1], maps[1].box[1]};
  };
  EXPECT_EQ(panels("d64"), std::pair(1, 1));
  EXPECT_EQ(panels("d128"), std::pair(2, 2));
  EXPECT_EQ(panels("d192 dv256"), std::pair(3, 2));
}

/// 96 of 132 multiprocessors read 5 % less than 128 (bench/results/h200/serving-tried.csv).
TEST(DecodeSm90, PartsKeepMostMultiprocessorsBusy) {
  const Hardware h200 = machine(90, 4320.0);
  const Problem p = problem("b16 h16/2 q1 k16384 d256 bf16 layout=bshd");
  EXPECT_EQ(decode_choose(p, h200).items.most_parts, 4);
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
  EXPECT_EQ(choice("b2 h8/1 q8 k2048 d256 bf16").items.row_tiles, 2);
}

/// Parts of `keys` keys as tile/key_parts.cuh counts them.
TEST(DecodeSm90, PartsOfAnEntry) {
  const auto parts = [](const std::string& line, std::int64_t keys) {
    return decode_with_parts(problem(line), keys, machine(90)).items.most_parts;
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

std::string chosen(const std::string& line) {
  Hardware hopper = machine(90);
  hopper.bandwidth_gbps = 4320.0;  // an H200
  return choose(problem(line), hopper, {}, kernel_table()).kernel;
}
std::string lengths(int entries, const std::string& of_each) {
  std::string text = " lengths=" + of_each;
  for (int b = 1; b < entries; ++b) text += "," + of_each;
  return text;
}

/// As an H200 measured them (bench/results/h200/served-forms.csv): 0.0515 ms, flash_fwd_sm90
/// 0.0537.
TEST(DecodeSm90, ManyShortEntriesOfNarrowRowsAreTaken) {
  const std::string own = "flash_decode_sm90", served = " bf16 layout=bshd";
  std::string many = "4122";
  for (int b = 1; b < 128; ++b) many += ",900";
  EXPECT_EQ(chosen("b128 h8/4 q1 k4122 d64 paged=16 lengths=" + many + served), own);
  EXPECT_EQ(chosen("b29 h8/4 q1 k60483 d64" + served), own);  // 0.4015 for 0.4243
}

/// Where pools hold as much as entries of one length have: 0.257 ms for 0.279 at dim 64, 0.494 for
/// 0.510 at 128, 0.0821 for 0.0837 through pages of 1. With 8 queries 0.080 for 0.126.
TEST(DecodeSm90, PagesOfOneLengthAreLeftToLongRows) {
  const std::string served = " bf16 layout=bshd", other = "flash_fwd_sm90";
  const auto splits = [&](const std::string& line) {
    EXPECT_EQ(chosen(line), other) << line;
    Hardware hopper = machine(90);
    hopper.bandwidth_gbps = 4320.0;
    return choose(problem(line), hopper, {}, kernel_table()).splits;
  };
  const std::string sixteen = "b16 h32/4 q1 k8192 d128", eight = lengths(16, "8192");
  EXPECT_EQ(splits("b64 h32/8 q1 k8192 d64 paged=64" + lengths(64, "8192") + served), 1);
  EXPECT_EQ(splits("b64 h32/8 q1 k8192 d128 paged=64" + lengths(64, "8192") + served), 1);
  EXPECT_EQ(splits(sixteen + " paged=1" + eight + served), 2);
  EXPECT_EQ(splits(sixteen + " paged=16" + eight + served), 2);
  EXPECT_EQ(splits("b16 h16/2 q1 k16384 d128 paged=256" + lengths(16, "16384") + served), 4);
  EXPECT_EQ(chosen("b16 h32/4 q8 k8192 d128 causal paged=16" + eight + served), other);
  // 0.1384 for 0.1428.
  EXPECT_EQ(splits("b16 h16/2 q1 k16384 d256 paged=256" + lengths(16, "16384") + served), 4);
}

/// Tables are wider than what their entries hold: 0.0153 ms, 0.0210 in parts of 512 keys.
TEST(DecodeSm90, AShortEntryOfAWideTableIsLeftToLongRows) {
  EXPECT_EQ(chosen("b1 h32/8 q1 k32768 d128 paged=16 lengths=4000 bf16 layout=bshd"),
            "flash_fwd_sm90");
}

TEST(DecodeSm90, OneLengthAndMoreQueriesAreLeftToLongRows) {
  const std::string own = "flash_decode_sm90";
  EXPECT_NE(chosen("b16 h32/4 q1 k8192 d128 bf16"), own);
  EXPECT_NE(chosen("b1 h32/8 q1 k4096 d128 bf16"), own);
  EXPECT_NE(chosen("b4 h16 s2048 d128 bf16 causal"), own);
  EXPECT_NE(chosen("b1 h32/4 q16 k16384 d128 bf16 causal paged=64 layout=bshd lengths=16384"), own);
}

/// As an H200 measured them (bench/results/h200/serving.json, serving-tried.csv): keys and values
/// in rows of 128 bytes come faster by the copy engine, those of 256 bytes by threads.
TEST(DecodeSm90, OneLengthOfNarrowRowsIsLeftToTheCopyEngine) {
  EXPECT_EQ(chosen("b32 h64/8 q1 k8192 d64 bf16 layout=bshd"), "flash_fwd_sm90");
  EXPECT_EQ(chosen("b64 h32/4 q1 k8192 d128 bf16 layout=bshd"), "flash_fwd_sm80");
}

/// As an H200 measured it twice: 0.0128 ms, flash_fwd_sm80 0.0138.
TEST(DecodeSm90, FewKeysInManyPartsAreLeftToFlashFwdSm90) {
  EXPECT_EQ(chosen("b1 h32/8 q1 k4096 d128 bf16 layout=bshd"), "flash_fwd_sm90");
}

/// One wave that is not quite full is faster than one and a half: 0.0825 ms with 256 items, 0.0933
/// with 384.
TEST(DecodeSm90, PartsFillTheCardAWholeNumberOfTimes) {
  const auto items = [](const std::string& line) {
    const Problem p = problem(line);
    return static_cast<int>(p.batch * p.heads_k) * decode_choose(p, machine(90)).items.most_parts;
  };
  const std::string served = " bf16 layout=bshd";
  EXPECT_EQ(items("b16 h32/4 q1 k8192 d128 paged=16" + lengths(16, "8192") + served), 256);
  EXPECT_EQ(items("b16 h16/2 q1 k16384 d128 paged=256" + lengths(16, "16384") + served), 256);
}

/// One block a multiprocessor: 4 parts 0.1444 ms, 8 parts 0.1508.
TEST(DecodeSm90, PartsOfWideRowsAreOneWave) {
  const Hardware h200 = machine(90, 4320.0);
  const Problem p =
      problem("b16 h16/2 q1 k16384 d256 bf16 layout=bshd paged=256" + lengths(16, "16384"));
  EXPECT_EQ(decode_choose(p, h200).items.most_parts, 4);
}

Plan planned(const std::string& line) {
  Hardware h200 = machine(90);
  h200.bandwidth_gbps = 4320.0;
  return choose(problem(line), h200, {}, kernel_table());
}

/// As an H200 measured drawn shapes (bench/results/h200/served-parts.csv, served-forms.csv): rows
/// and parts within 2 % of the fastest, or 0.7 us.
TEST(DecodeSm90, DrawnShapesTakeFastRowsAndParts) {
  const auto is = [](const std::string& sizes, const std::string& kernel, int parts) {
    const Plan plan = planned(sizes + " layout=bshd");
    EXPECT_EQ(plan.kernel, kernel) << sizes;
    EXPECT_EQ(plan.splits, parts) << sizes;
  };
  is("b66 h8/4 q1 k15032 d128 bf16", "flash_fwd_sm90", 1);
  is("b9 h16/8 q1 k37656 d128 bf16", "flash_fwd_sm90", 11);
  is("b7 h48/8 q1 k54005 d128 bf16", "flash_decode_sm90", 2);
  is("b8 h48/8 q1 k29445 d128 bf16", "flash_decode_sm90", 2);
  is("b1 h32/8 q1 k4096 d128 bf16", "flash_fwd_sm90", 8);
  is("b2 h16/4 q1 k3000 d128 bf16", "flash_fwd_sm90", 8);
  is("b128 h16/4 q1 k2820 d64 f16", "flash_fwd_sm90", 1);
  is("b77 h16/8 q1 k5476 d128 f16", "flash_fwd_sm90", 1);
  is("b31 h16/8 q1 k15142 d128 bf16", "flash_fwd_sm80", 1);
  is("b16 h16/2 q1 k16384 d256 bf16", "flash_fwd_sm90", 4);
  // One tile for two multiprocessors: 0.0739 and 0.0750 ms, in two parts 0.0755 and 0.0807.
  is("b16 h32/4 q1 k8192 d128 bf16", "flash_fwd_sm90", 1);
  is("b16 h32/4 q8 k8192 d128 bf16 causal", "flash_fwd_sm90", 1);
  // One for some pairs of them and two for others: in one part 0.0651 and 0.1016 ms.
  is("b12 h32/8 q1 k4096 d128 bf16", "flash_fwd_sm90", 4);
  is("b20 h32/4 q1 k8192 d128 bf16", "flash_fwd_sm90", 3);
  is("b1 h16/8 q1 k145624 d128 bf16", "flash_fwd_sm90", 16);
  is("b5 h8/4 q1 k57062 d128 bf16", "flash_fwd_sm90", 13);
  // A query a tile: 0.0258 ms, in blocks of 128 keys 0.0303.
  is("b8 h20 q1 k1500 d64 bf16", "flash_fwd_sm80", 3);
}

/// Ragged lengths, as an H200 measured them (bench/results/h200/served-forms.csv): 0.1302 ms for
/// 0.1371 of flash_decode_sm90, 0.2861 for 0.3009, 0.0457 for 0.0495, 0.0506 for 0.0529.
TEST(DecodeSm90, RaggedPagesAreCutByLongRows) {
  const auto is = [](const std::string& line, const std::string& lengths, int parts) {
    const Plan plan = planned(line + " layout=bshd lengths=" + lengths);
    EXPECT_EQ(plan.kernel, "flash_fwd_sm90") << line;
    EXPECT_EQ(plan.splits, parts) << line;
  };
  is("b32 h32/4 q1 k32768 d128 bf16 paged=16",
     "1024,32768,2048,9000,1500,20011,3333,4096,12001,1200,6000,1777,28000,2500,5120,1024,7000,"
     "1300,"
     "16384,2222,4800,1111,10240,3000,1900,25000,1400,5500,8192,1024,2048,4000",
     12);
  is("b4 h32/4 q256 k16384 d128 bf16 causal paged=64", "16384,1000,5000,300",
     2);                                                                          // 0.172 for 0.200
  is("b4 h32/8 q256 k8192 d128 bf16 causal paged=16", "8192,3000,6000,1000", 1);  // 0.128 for 0.155
}

/// With `deterministic` an entry's parts do not follow from the pages of the others (CONTRACT 14).
TEST(DecodeSm90, PoolsDecideNothingWithDeterministic) {
  const std::string one = " h64/8 q1 k32768 d128 bf16 paged=16 deterministic layout=bshd";
  const Plan few = planned("b2 lengths=8000,32768" + one);
  std::string lengths = "8000";
  for (int i = 0; i < 15; ++i) lengths += ",500";
  const Plan many = planned("b17 lengths=" + lengths + ",32768" + one);
  EXPECT_EQ(few.kernel, many.kernel);
  EXPECT_EQ(few.splits, many.splits);
}

/// Pools tell how many keys all entries may have, where the longest of them says little.
TEST(DecodeSm90, PartsOfRaggedPagesGoByThePools) {
  const std::string lengths = " lengths=30000,900,2000,1500,700,4000,900,1200";
  const Problem p = problem("b8 h32/8 q1 k30000 d128 bf16 layout=bshd paged=16" + lengths);
  Hardware h200 = machine(90);
  h200.bandwidth_gbps = 4320.0;
  const int keys = decode_choose(p, h200).items.keys;
  EXPECT_GE(keys, 512);
  EXPECT_LT(keys, 2048);
  // Cut where each part costs a microsecond of its place.
  const Problem full = problem("b64 h32/8 q1 k8192 d128 bf16 layout=bshd paged=64" +
                               tilewise::cuda::lengths(64, "8192"));
  EXPECT_EQ(decode_choose(full, h200).items.keys, 2048);
}

/// `tilewise tune` measures the row with other parts than the model's.
TEST(DecodeSm90, ItsFormsAreItsParts) {
  const Problem p = problem("b16 h32/4 q1 k8192 d128 bf16 layout=bshd");
  const Choice own{.implementation = "", .kernel = "flash_decode_sm90"};
  std::vector<int> parts;
  for (const Plan& plan : all_forms(p, machine(90), own, kernel_table())) {
    EXPECT_EQ(plan.block_m, 16);
    EXPECT_EQ(plan.block_n, decode_sm90::kBlockN);
    parts.push_back(plan.splits);
  }
  std::sort(parts.begin(), parts.end());
  EXPECT_EQ(std::adjacent_find(parts.begin(), parts.end()), parts.end());
  for (const int wanted : {1, 2, 4, 8}) {
    EXPECT_TRUE(std::binary_search(parts.begin(), parts.end(), wanted)) << wanted;
  }
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
  EXPECT_EQ(refusal("b2 h8/2 q1 k2048 d128 bf16 lengths=2048,9 window=-1,none"), "");
  EXPECT_NE(refusal("b2 h8/2 q1 k2048 d128 bf16 lengths=2048,9 paged=16 window=-1,none"), "");
  EXPECT_NE(refusal("b2 h8/2 q1 k2048 d128 bf16 layout=transposed"), "");
  EXPECT_NE(decode_refusal(problem("b2 h8/2 q1 k2048 d128 bf16"), machine(80)), "");
}

}  // namespace
}  // namespace tilewise::cuda
