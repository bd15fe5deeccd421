// Block lists of the Hopper rows, without a GPU: what is taken, what is refused, memory, cost.
#include "cuda/kernels/rows/tile_lists.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "cuda/ask_row.h"
#include "cuda/kernels/bwd_sm90/row.h"
#include "cuda/kernels/bwd_sm90/tiles.h"
#include "cuda/kernels/fwd_sm90/row.h"
#include "cuda/kernels/fwd_sm90/tiles.h"
#include "cuda/machine.h"
#include "harness/case.h"
#include "harness/materialize.h"

namespace tilewise::cuda {
namespace {

using tile::Lists;

Problem problem(const std::string& line, Pass pass = Pass::forward) {
  const PlannedCase planned(parse_case(line), kCuda);
  return pass == Pass::forward ? make_problem(planned.forward(), planned.spec(), Purpose::plan)
                               : make_problem(planned.backward(), planned.spec(), Purpose::plan);
}

std::int64_t listed_bytes(const Cost& cost) {
  std::int64_t bytes = 0;
  for (const MemoryPart& part : cost.memory) {
    if (std::string(part.name).find("listed") != std::string::npos) bytes += part.bytes;
  }
  return bytes;
}

TEST(TileLists, BlocksBesideTiles) {
  const std::string head = "b1 h2 s4096 d128 bf16 ";
  const Hardware hopper = machine(90);
  for (const char* list :
       {"blocks=128,128:1,h:0.5", "blocks=16,256:1,h:0.5", "blocks=64,64:1,1:0.5",
        "blocks=256,16:1,h:0.5 causal", "blocks=32,32:1,1:0.5 window=500,0"}) {
    EXPECT_EQ(refusal_by(kFlashForwardSm90, problem(head + list), hopper), "") << list;
    EXPECT_EQ(refusal_by(kFlashBackwardSm90, problem(head + list, Pass::backward), hopper), "")
        << list;
  }
  for (const char* list : {"blocks=48,128:1,h:0.5", "blocks=128,8:1,h:0.5"}) {
    const std::string why = refusal_by(kFlashForwardSm90, problem(head + list), hopper);
    EXPECT_NE(why.find("are not supported by this kernel"), std::string::npos) << why;
    EXPECT_NE(why.find(list[7] == '4' ? "48 x 128" : "128 x 8"), std::string::npos) << why;
  }
  const std::string wide = "b1 h1 s512 d256 bf16 blocks=128,128:1,1:0.5";
  EXPECT_EQ(refusal_by(kFlashForwardSm90, problem(wide), hopper), "");
  EXPECT_NE(refusal_by(kFlashBackwardSm90, problem(wide, Pass::backward), hopper)
                .find("block lists above head dim 128"),
            std::string::npos);
  // Lists are by batch entry here: on a card a packed problem read outside them.
  const std::string packed = "packed=70,33/90,130 h4/2 d64 bf16 blocks=64,64:b,1:0.5";
  for (const auto& [row, pass] : {std::pair{&kFlashForwardSm90, Pass::forward},
                                  std::pair{&kFlashBackwardSm90, Pass::backward}}) {
    EXPECT_NE(refusal_by(*row, problem(packed, pass), hopper).find("beside a block list"),
              std::string::npos);
  }
}

TEST(TileLists, ConfigOfAList) {
  const Problem whole = problem("b1 h2 s4096 d128 bf16 blocks=256,128:1,h:0.5");
  const Problem parts = problem("b1 h2 s4096 d64 bf16 blocks=128,64:1,h:0.5 causal");
  const Problem narrow = problem("b1 h2 s4096 d64 bf16 blocks=64,128:1,h:0.5");
  ASSERT_EQ(sm90_tiles(whole).size(), 1U);
  const fwd_sm90::Config a = sm90_config(whole, sm90_tiles(whole).front(), false);
  EXPECT_EQ(a.lists, Lists::whole);
  EXPECT_EQ(a.block_n, 128);
  const fwd_sm90::Config b = sm90_config(parts, sm90_tiles(parts).front(), false);
  EXPECT_EQ(b.lists, Lists::whole);  // by 64 keys
  EXPECT_EQ(b.block_n, 64);
  EXPECT_FALSE(b.skip_blocks || b.chain_tiles || b.halve_cut || b.pack_heads);
  EXPECT_EQ(sm90_config(narrow, sm90_tiles(narrow).front(), false).lists, Lists::parts);
  EXPECT_EQ(bwd_sm90_config(whole).lists, Lists::parts);
  EXPECT_EQ(bwd_sm90_config(parts).lists, Lists::parts);
  // Few tiles: neither are keys split, nor tiles cut.
  const Problem few = problem("b1 h1 q64 k65536 d128 bf16 blocks=128,128:1,1:0.5");
  EXPECT_EQ(sm90_choose(few, machine(90)).splits, 1);
  EXPECT_FALSE(bwd_sm90_config(few).split);
}

TEST(TileLists, ListsOfEntriesWithLengths) {
  const std::string head = "b3 h4/2 s1024 d64 bf16 blocks=128,128:";
  const auto lists = [&](const std::string& rest) {
    return TileListsMaker(problem(head + rest), 128, 128, Lists::whole).blocks() / 8;
  };
  EXPECT_EQ(lists("1,1:0.5"), 1);
  EXPECT_EQ(lists("1,h:0.5"), 4);
  EXPECT_EQ(lists("b,1:0.5"), 3);
  EXPECT_EQ(lists("b,h:0.5"), 12);
  EXPECT_EQ(lists("1,h:0.5 lengths=1024,7,0"), 12);
}

TEST(TileLists, RoomIsTwoBitsATile) {
  const Problem p = problem("b2 h4 s65536 d128 bf16 blocks=128,128:1,1:0.1", Pass::forward);
  EXPECT_EQ(listed_bytes(cost_by(kFlashForwardSm90, p, machine(90))), 2 * 512 * 512 / 8);
}

TEST(TileLists, CostGoesByTheList) {
  const Hardware hopper = machine(90);
  const auto ms = [&](const KernelRow& row, const char* density, Pass pass) {
    const std::string list = " blocks=128,128:1,1:" + std::string(density);
    return cost_by(row, problem("b2 h16 s8192 d128 bf16" + list, pass), hopper).ms;
  };
  for (const auto& [row, pass] : {std::pair(&kFlashForwardSm90, Pass::forward),
                                  std::pair(&kFlashBackwardSm90, Pass::backward)}) {
    EXPECT_LT(ms(*row, "0.1", pass), 0.3 * ms(*row, "0.5", pass)) << row->name;
    EXPECT_LT(ms(*row, "0.5", pass), 0.65 * ms(*row, "1", pass)) << row->name;
  }
}

}  // namespace
}  // namespace tilewise::cuda
