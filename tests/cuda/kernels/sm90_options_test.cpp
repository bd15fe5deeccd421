// Sinks, bool masks, dropout and biases of the rows for Hopper, without a GPU: what is taken, what
// is refused, configs, memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "cuda/ask_row.h"
#include "cuda/host/options.h"
#include "cuda/kernels/bwd_sm90/row.h"
#include "cuda/kernels/bwd_sm90/tiles.h"
#include "cuda/kernels/decode_sm90/row.h"
#include "cuda/kernels/fwd_sm90/row.h"
#include "cuda/kernels/fwd_sm90/tiles.h"
#include "cuda/kernels/rows/mask_bits.h"
#include "cuda/kernels/tile_lists/kinds.h"
#include "cuda/machine.h"
#include "harness/case.h"
#include "harness/materialize.h"

namespace tilewise::cuda {
namespace {

Problem problem(const std::string& line, Pass pass = Pass::forward) {
  const PlannedCase planned(parse_case(line), kCuda);
  return pass == Pass::forward ? make_problem(planned.forward(), planned.spec(), Purpose::plan)
                               : make_problem(planned.backward(), planned.spec(), Purpose::plan);
}
std::string forward_refusal(const std::string& line) {
  return refusal_by(kFlashForwardSm90, problem(line), machine(90));
}
std::string backward_refusal(const std::string& line) {
  return refusal_by(kFlashBackwardSm90, problem(line, Pass::backward), machine(90));
}
fwd_sm90::Config forward_config(const std::string& line) {
  const Problem p = problem(line);
  return fwd_sm90_config(p, *fwd_sm90_choose(p, machine(90)).tile, false);
}
std::int64_t bit_bytes(const KernelRow& row, const Problem& p) {
  std::int64_t bytes = 0;
  for (const MemoryPart& part : cost_by(row, p, machine(90)).memory) {
    if (std::string(part.name) == "bits of the mask") bytes += part.bytes;
  }
  return bytes;
}

TEST(Sm90Options, WhatIsTaken) {
  for (const char* line :
       {"b2 h4/2 s4096 d64 bf16 sink", "b2 h4 s4096 d256 f16 sink softcap=20 causal",
        "b2 h4 s4096 d128 bf16 mask=b,1,1,k",
        "b2 h4 s4096 d128 bf16 mask=1,h,q,k alibi window=99,0", "b2 h4 s4096 d64 bf16 dropout=0.1",
        "packed=2000,3000 h4 d64 bf16 dropout=0.1 sink causal",
        "b2 h4 s4096 d64 bf16 mask=b,1,1,k dropout=0.1 sink deterministic",
        "b2 h4 s4096 d128 bf16 bias=1,h,q,k:bf16 causal",
        "b2 h4 s4096 d64 f16 bias=b,1,1,k:f16 mask=b,1,1,k dropout=0.1 sink"}) {
    EXPECT_EQ(forward_refusal(line), "") << line;
    EXPECT_EQ(backward_refusal(line), "") << line;
  }
  EXPECT_EQ(forward_refusal("packed=2000,3000 h4 d64 bf16 mask=1,q,k bias=h,q,k"), "");
  EXPECT_EQ(forward_refusal("b2 h4 s4096 d256 bf16 mask=b,1,1,k dropout=0.5 bias=1,1,q,k:bf16"),
            "");
}

TEST(Sm90Options, WordsOfATreeAreReadInsteadOfItsFunction) {
  const std::string formula =
      " mask_expr='n = key_length - query_length; t = j - n; (j <= i + n) & (t < 0 | ((tree[b, i, "
      "t "
      ">> 5 & 1] >> (t & 31)) & 1) == 1)' captures='tree:i32[B,Sq,2]=rand*9'";
  const std::string shape = "b4 h32/4 q64 k8192 d128 bf16";
  const Problem p = problem(shape + formula), words = by_tree_words(p);
  ASSERT_TRUE(has_tree_words(p));
  const fwd_sm90::Config config =
      fwd_sm90_config(words, *fwd_sm90_choose(words, machine(90)).tile, false);
  EXPECT_TRUE(config.options.tree);
  EXPECT_FALSE(config.expressions.any());
  EXPECT_EQ(config.lists, tile::Lists::none);
  EXPECT_FALSE(options_of(p).tree);  // as kernels see it that evaluate the function
  const Cost tree = cost_by(kFlashForwardSm90, p, machine(90));
  const Cost causal = cost_by(kFlashForwardSm90, problem(shape + " causal"), machine(90));
  EXPECT_EQ(tree.ms, causal.ms);
  EXPECT_EQ(tree.memory.size(), causal.memory.size());
  const std::string few = "b4 h8/4 q8 k8192 d128 bf16 lengths=9,8192,70,300 paged=16 pass=fwd";
  EXPECT_EQ(refusal_by(kFlashDecodeSm90, problem(few + formula), machine(90)), "");
}

TEST(Sm90Options, WhatBackwardLeavesToOthers) {
  const std::string unsupported = "not supported by this kernel";
  for (const char* line :
       {"b2 h4 s4096 d128 bf16 bias=1,h,q,k", "b2 h4 s4096 d192 bf16 bias=1,h,q,k:bf16",
        "b2 h4 s4096 d128 bf16 bias=1,h,q,k:bf16 softcap=20",
        "b2 h4 s4096 d64 bf16 bias=1,h,q,1:bf16", "packed=2000,3000 h4 d64 bf16 bias=h,q,k:bf16",
        "b2 h4 s4096 d192 bf16 mask=b,1,1,k", "packed=2000,3000 h4 d64 bf16 mask=1,q,k",
        "b2 h4 s4096 d256 bf16 dropout=0.1"}) {
    EXPECT_NE(backward_refusal(line).find(unsupported), std::string::npos)
        << line << ": " << backward_refusal(line);
  }
  for (const char* line : {"packed=20,30 h4 d64 bf16 sink", "packed=20,30 h4 d64 bf16 dropout=0.1"})
    EXPECT_NE(backward_refusal(line).find("flash_bwd_sm80"), std::string::npos) << line;
}

// What no card has timed is taken by name alone.
TEST(Sm90Options, BiasesOfSmallProblemsAreOnTrialInBackward) {
  const auto trial = [](const std::string& line) {
    const Problem p = problem(line, Pass::backward);
    return kFlashBackwardSm90.on_trial(kFlashBackwardSm90, p);
  };
  for (const char* line : {"sink", "mask=b,1,1,k", "causal", "dropout=0.1", "bias=1,h,q,k:bf16"})
    EXPECT_EQ(trial(std::string("b2 h4 s4096 d64 bf16 ") + line), "") << line;
  EXPECT_NE(trial("b1 h2 s512 d64 bf16 bias=1,h,q,k:bf16"), "");
}

TEST(Sm90Options, BiasesHaveRoomInBackward) {
  for (const char* line : {"d64 bf16 bias=1,h,q,k:bf16", "d64 bf16 bias=1,h,q,k:bf16 softcap=20",
                           "d128 f16 bias=b,h,q,k:f16 alibi", "d128 bf16 bias=b,1,1,k:bf16"}) {
    const Problem p = problem(std::string("b1 h4 s1024 ") + line, Pass::backward);
    const bwd_sm90::Config config = bwd_sm90_config(p);
    EXPECT_LE(bwd_sm90::SharedPlan(config).bytes, bwd_sm90::SharedPlan::kRoom) << line;
    EXPECT_EQ(config.options.pairs.staged, std::string(line).find("q,k") != std::string::npos);
  }
}

TEST(Sm90Options, PlainProblemsHaveThePlainKernel) {
  const fwd_sm90::Config plain = forward_config("b2 h16 s4096 d64 bf16");
  EXPECT_FALSE(plain.options.any());
  fwd_sm90::Config sinks = forward_config("b2 h16 s4096 d64 bf16 sink");
  EXPECT_TRUE(sinks.options.sinks);
  sinks.options = {};
  EXPECT_EQ(sinks, plain);
  const Problem p = problem("b2 h4 s4096 d64 bf16 sink", Pass::backward);
  EXPECT_FALSE(bwd_sm90_config(p).options.any()) << "sinks are in LSE";
}

// Where tiles are many a mask makes a list: tiles that it hides are skipped.
TEST(Sm90Options, MasksOfManyTilesMakeLists) {
  for (const char* line :
       {"b1 h16 s8192 d64 bf16 mask=b,1,1,k", "b32 h12 s512 d64 bf16 mask=b,1,1,k",
        "b1 h16 s8192 d96 bf16 mask=b,1,1,k", "b2 h8 s2048 d256 f16 mask=b,h,1,k",
        "b2 h8 s2048 d128 bf16 mask=b,1,1,k causal sink lengths=2048,77"}) {
    const Problem p = problem(line);
    EXPECT_TRUE(prefers_map(p)) << line;
    const fwd_sm90::Config config = forward_config(line);
    EXPECT_EQ(config.lists, tile::Lists::whole) << line;
    EXPECT_LE(fwd_sm90::SharedPlan(config).bytes, 227 * 1024) << line;
    const Cost cost = cost_by(kFlashForwardSm90, p, machine(90));
    const auto is_list = [](const MemoryPart& part) {
      return std::string(part.name) == "tiles listed";
    };
    EXPECT_TRUE(std::any_of(cost.memory.begin(), cost.memory.end(), is_list)) << line;
  }
  for (const char* line :
       {"b1 h2 s2048 d64 bf16 mask=b,1,1,k", "b64 h12 s256 d64 bf16 mask=b,1,1,k",
        "b1 h16 s8192 d64 bf16 mask=b,1,1,k bias=1,1,q,k:bf16",
        "b1 h16 s8192 d64 bf16 mask=b,1,1,k dropout=0.1", "b1 h16 s8192 d64 bf16",
        "b1 h16 s8192 d64 bf16 mask=1,1,q,k"}) {
    EXPECT_EQ(forward_config(line).lists, tile::Lists::none) << line;
  }
}

TEST(Sm90Options, WhetherAMaskMakesAListDependsOnNoOtherEntry) {
  EXPECT_TRUE(prefers_map(problem("b64 h2 s1024 d64 bf16 mask=b,1,1,k")));
  EXPECT_FALSE(prefers_map(problem("b64 h2 s1024 d64 bf16 mask=b,1,1,k deterministic")));
  EXPECT_TRUE(prefers_map(problem("b1 h16 s2048 d64 bf16 mask=b,1,1,k deterministic")));
  EXPECT_FALSE(prefers_map(problem("packed=4000,4000 h16 d64 bf16 mask=1,q,k deterministic")));
}

TEST(Sm90Options, BackwardTakesAMasksListWhereItCutsNoTiles) {
  const auto lists = [](const char* line) {
    return bwd_sm90_config(problem(line, Pass::backward)).lists;
  };
  EXPECT_EQ(lists("b1 h16 s8192 d64 bf16 mask=b,1,1,k"), tile::Lists::whole);
  EXPECT_EQ(lists("b1 h16 s8192 d128 bf16 mask=b,1,1,k causal"), tile::Lists::whole);
  EXPECT_EQ(lists("b4 h32/4 s4096 d128 bf16 mask=b,1,1,k causal"), tile::Lists::none) << "sharers";
  EXPECT_EQ(lists("b1 h2 s8192 d64 bf16 mask=b,1,1,k"), tile::Lists::none) << "parts";
  EXPECT_EQ(lists("b2 h16 s512 d64 bf16 mask=b,1,1,k bias=1,1,q,k:bf16"), tile::Lists::none);
}

TEST(Sm90Options, TheMainKernelSumsTheGradientOfABiasOfPairs) {
  const auto sums = [](const std::string& line) {
    const Problem p = problem(line, Pass::backward);
    const bool taken = bwd_sm90_config(p).sums.bias;
    const Cost cost = cost_by(kFlashBackwardSm90, p, machine(90));
    const auto has = [&](const char* name) {
      return std::any_of(cost.memory.begin(), cost.memory.end(),
                         [&](const MemoryPart& part) { return std::string(part.name) == name; });
    };
    EXPECT_EQ(has("dbias sums"), taken) << line;
    EXPECT_FALSE(taken && has("dbias parts")) << line;
    return taken;
  };
  const std::string shape = "b2 h8 s2048 d64 bf16 ";
  EXPECT_TRUE(sums(shape + "bias=1,1,q,k:bf16"));
  EXPECT_TRUE(sums(shape + "bias=b,h,q,k:bf16 causal dropout=0.1 mask=b,1,1,k"));
  EXPECT_TRUE(sums("b2 h8/2 s2048 d128 f16 bias=1,h,q,k:f16 lengths=2048,9"));
  for (const char* other :
       {"bias=b,1,1,k:bf16", "bias=1,1,q,k:bf16 deterministic", "bias=1,1,q,k:bf16 softcap=20"})
    EXPECT_FALSE(sums(shape + other)) << other;
  EXPECT_FALSE(sums("b1 h1 s512 d64 bf16 bias=1,1,q,k:bf16")) << "two planes";
}

TEST(Sm90Options, TilesOf128x128MakeDropoutsBitsBetweenProducts) {
  for (const char* dims : {"d64", "d96", "d128"}) {
    const std::string line = std::string("b1 h16 s8192 bf16 dropout=0.1 ") + dims;
    for (const char* more : {"", " causal", " causal sink mask=1,1,q,k", " bias=1,1,q,k"}) {
      const fwd_sm90::Config config = forward_config(line + more);
      EXPECT_EQ(config.shape.warpgroups, 2) << line << more;
      EXPECT_TRUE(config.schedule.bits_between && goes_together(config)) << line << more;
    }
  }
  EXPECT_EQ(forward_config("b1 h16 s8192 d64 bf16").shape.warpgroups, 3);
  EXPECT_FALSE(forward_config("b1 h16 s8192 d256 bf16 dropout=0.1").schedule.bits_between);
  EXPECT_FALSE(forward_config("b1 h16 s8192 d128 bf16").schedule.bits_between);
}

TEST(Sm90Options, AMaskOfPairsTakesTilesOf128Keys) {
  for (const char* more : {"", " causal", " sink"}) {
    const auto config = forward_config("b1 h16 s8192 d128 bf16 mask=1,1,q,k" + std::string(more));
    EXPECT_EQ(config.shape.block_n, 128) << more;
  }
}

// A mask takes a bit a pair of what it does not broadcast over; words of 128 or fewer elements.
TEST(Sm90Options, MemoryOfMasks) {
  const auto bits = [](const std::string& mask, Pass pass) {
    const Problem p = problem("b2 h4 q1024 k2048 d64 bf16 mask=" + mask, pass);
    return bit_bytes(pass == Pass::forward ? kFlashForwardSm90 : kFlashBackwardSm90, p);
  };
  EXPECT_EQ(bits("b,h,q,k", Pass::forward), 2 * 4 * 1024 * 2048 / 8);
  EXPECT_EQ(bits("1,1,q,k", Pass::forward), 1024 * 2048 / 8);
  EXPECT_EQ(bits("b,1,1,k", Pass::forward), 2 * 2048 / 8);
  EXPECT_EQ(bits("1,h,q,1", Pass::forward), 4 * 1024 * 16);
  EXPECT_EQ(bits("b,1,1,k", Pass::backward), 2 * 2048 * 16);
  EXPECT_EQ(bits("1,1,q,k", Pass::backward), 1024 * 2048 / 8);
}

TEST(Sm90Options, BiasesAreStagedWhereTheirRowsBeginEven) {
  const auto staged = [](const std::string& bias) {
    return forward_config("b1 h4 s1024 d64 bf16 bias=" + bias).options.pairs.staged;
  };
  EXPECT_TRUE(staged("1,h,q,k:bf16"));
  EXPECT_TRUE(staged("b,1,1,k"));
  EXPECT_FALSE(staged("1,h,q,1"));
  EXPECT_FALSE(staged("1,h,q,k:step2"));
  EXPECT_FALSE(forward_config("b1 h4 q1024 k1023 d64 bf16 bias=1,h,q,k:bf16").options.pairs.staged);
  for (const char* line : {"d64 bf16 bias=1,h,q,k", "d96 bf16 bias=1,h,q,k:bf16",
                           "d128 bf16 bias=1,h,q,k:bf16", "d256 bf16 bias=1,h,q,k"}) {
    for (const FwdSm90Tile& tile : fwd_sm90_tiles(problem(std::string("b1 h4 s1024 ") + line))) {
      const fwd_sm90::Config config =
          fwd_sm90_config(problem(std::string("b1 h4 s1024 ") + line), tile, false);
      EXPECT_LE(fwd_sm90::SharedPlan(config).bytes, 227 * 1024) << line;
    }
  }
}

TEST(Sm90Options, TheCopyEngineBringsABiasOfEachQueryWhoseRowsBeginAt16Bytes) {
  const auto stages = [](const std::string& line) {
    const fwd_sm90::Config config = forward_config(line);
    EXPECT_LE(fwd_sm90::SharedPlan(config).bytes, 227 * 1024) << line;
    return config.shape.bias_stages;
  };
  for (const char* more : {"d64 bf16 bias=1,1,q,k:bf16", "d128 bf16 bias=b,h,q,k:bf16 causal",
                           "d64 f16 bias=1,h,q,k:f16 softcap=20 sink mask=1,1,q,k",
                           "d64 bf16 bias=1,1,q,k:bf16 window=400,31"})
    EXPECT_EQ(stages(std::string("b2 h4 s4096 ") + more), 2) << more;
  for (const char* line :
       {"b2 h4 s4096 d64 bf16 bias=b,1,1,k:bf16", "b2 h4 s4096 d64 bf16 bias=1,1,q,k",
        "b2 h4 q4096 k4090 d64 bf16 bias=1,1,q,k:bf16", "b2 h4 s4096 d64 bf16",
        "b2 h4 s4096 d96 bf16 bias=1,1,q,k:bf16", "packed=2000,3000 h4 d64 bf16 bias=h,q,k:bf16",
        "b2 h4 s4096 d128 bf16 bias=1,1,q,k:bf16 dropout=0.1",
        "b2 h4 s4096 d128 bf16 bias=1,1,q,k:bf16 mask=1,1,q,k"})
    EXPECT_EQ(stages(line), 0) << line;
}

TEST(Sm90Options, AWarpOfItsOwnBringsBoxesAtDim128) {
  const auto tile = [](const std::string& line) {
    const fwd_sm90::Config config = forward_config(line);
    EXPECT_EQ(config.shape.bias_stages, 2) << line;
    const int rows = 64 * config.shape.warpgroups;
    return std::tuple(rows, config.shape.block_n, config.schedule.boxes_apart);
  };
  EXPECT_EQ(tile("b1 h16 s8192 d128 bf16 bias=1,1,q,k:bf16"), std::tuple(128, 128, true));
  EXPECT_EQ(tile("b1 h16 s8192 d128 bf16 bias=1,1,q,k:bf16 causal"), std::tuple(192, 64, true));
  EXPECT_EQ(tile("b1 h16 s8192 d64 bf16 bias=1,1,q,k:bf16"), std::tuple(192, 128, false));
  for (const char* line : {"b1 h16 s8192 d128 bf16", "b1 h4 s4096 d128 bf16 bias=1,1,q,k"})
    EXPECT_FALSE(forward_config(line).schedule.boxes_apart) << line;
  fwd_sm90::Config config = forward_config("b1 h16 s8192 d128 bf16 bias=1,1,q,k:bf16");
  EXPECT_TRUE(goes_together(config));
  config.shape.resident = 2;  // its producer has no second warp
  EXPECT_FALSE(goes_together(config));
}

/// A column of a wider tensor, for all keys: its rows begin at 16 bytes.
TEST(Sm90Options, TheCopyEngineDoesNotRepeatAColumn) {
  Problem p = problem("b2 h4 s4096 d64 bf16 bias=1,1,q,k:bf16");
  EXPECT_TRUE(fwd_sm90_engine_brings_bias(p));
  p.bias.strides[3] = 0;
  EXPECT_FALSE(fwd_sm90_engine_brings_bias(p));
}

TEST(Sm90Options, HeadsThatShareABiasGoThroughItTogether) {
  const auto together = [](const std::string& line) {
    const Problem p = problem(line);
    const FwdSm90Tile& tile = *fwd_sm90_choose(p, machine(90)).tile;
    const fwd_sm90::Config config = fwd_sm90_config(p, tile, false);
    const fwd_sm90::SectionOrder forward = fwd_sm90_order(p, config, tile.block_m(), 1);
    const Problem of_backward = problem(line, Pass::backward);
    const bwd_sm90::SectionOrder backward =
        bwd_sm90_order(of_backward, bwd_sm90_config(of_backward));
    return std::pair(forward.last_heads, backward.last_heads);
  };
  using Heads = std::pair<int, int>;
  EXPECT_EQ(together("b1 h16 s8192 d64 bf16 bias=1,1,q,k:bf16"), Heads(16, 8));
  EXPECT_EQ(together("b1 h16 s8192 d64 bf16 bias=1,h,q,k:bf16"), Heads(1, 2));
  EXPECT_EQ(together("b1 h16 s8192 d64 bf16"), Heads(1, 2));
  EXPECT_EQ(together("b1 h16 s2048 d64 bf16 bias=1,1,q,k:bf16"),
            together("b1 h16 s2048 d64 bf16 bias=1,h,q,k:bf16"));
}

}  // namespace
}  // namespace tilewise::cuda
