// Block lists of the flash rows, without a GPU: what is taken, what is refused, memory, cost.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "cuda/ask_row.h"
#include "cuda/kernels/bwd_sm80/row.h"
#include "cuda/kernels/bwd_sm80/tiles.h"
#include "cuda/kernels/bwd_sm90/row.h"
#include "cuda/kernels/bwd_sm90/tiles.h"
#include "cuda/kernels/fwd_sm80/row.h"
#include "cuda/kernels/fwd_sm80/tiles.h"
#include "cuda/kernels/fwd_sm90/row.h"
#include "cuda/kernels/fwd_sm90/tiles.h"
#include "cuda/kernels/rows/documents.h"
#include "cuda/kernels/tile_lists/kinds.h"
#include "cuda/kernels/tile_lists/maker.h"
#include "cuda/machine.h"
#include "harness/case.h"
#include "harness/materialize.h"
#include "plan/choose.h"

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

/// Rows of 128 queries in all lists.
std::int64_t rows_of(const Problem& p) {
  const ListsStep first = TileListsMaker(p, {.kind = Lists::whole}).steps()[0];
  if (const auto* of = std::get_if<tile_lists::FunctionArgs>(&first.args)) return of->all_rows;
  return std::get<tile_lists::Args>(first.args).all_rows;
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
  // delta of small packed problems is taken from P, which the Hopper row does not do beside a list.
  const std::string packed = "packed=70,33/90,130 h4/2 d64 bf16 blocks=64,64:b,1:0.5";
  EXPECT_NE(refusal_by(kFlashBackwardSm90, problem(packed, Pass::backward), hopper)
                .find("small packed problems beside a block list"),
            std::string::npos);
  EXPECT_EQ(refusal_by(kFlashForwardSm90, problem(packed), hopper), "");
  const std::string large = "packed=2000,33/3000,130 h4/2 d64 bf16 blocks=64,64:b,1:0.5";
  EXPECT_EQ(refusal_by(kFlashBackwardSm90, problem(large, Pass::backward), hopper), "");
}

// The row whose consumers pass over blocks takes lists whose blocks are half of its tiles, and has
// what shared memory allows of stages.
TEST(TileLists, HalvesOfTiles) {
  const Hardware hopper = machine(90);
  const auto passing = [&](const std::string& line) {
    return refusal_by(kFlashBackwardPassingSm90, problem(line, Pass::backward), hopper);
  };
  const std::string head = "b1 h2 s4096 d128 bf16 ";
  EXPECT_EQ(passing(head + "blocks=64,64:1,h:0.5 causal"), "");
  EXPECT_EQ(passing(head + "blocks=128,64:1,h:0.5"), "");
  for (const char* list : {"", "blocks=128,128:1,h:0.5", "blocks=32,64:1,h:0.5"})
    EXPECT_NE(passing(head + list).find("blocks of 64 keys"), std::string::npos) << list;
  EXPECT_NE(passing(head + "blocks=64,64:1,h:0.5 deterministic").find("deterministic"),
            std::string::npos);
  EXPECT_NE(passing("b1 h2 s300 d128 bf16 blocks=64,64:1,h:0.5").find("small"), std::string::npos);
  EXPECT_NE(passing("packed=2000,33/3000,130 h4/2 d64 bf16 blocks=64,64:b,1:0.5")
                .find("packed sequences"),
            std::string::npos);
  for (const auto& [dim, stages] : {std::pair(64, 4), std::pair(128, 3)}) {
    const bwd_sm90::Config config = bwd_sm90_passing_config(problem(
        "b1 h2 s4096 d" + std::to_string(dim) + " bf16 blocks=64,64:1,h:0.5", Pass::backward));
    EXPECT_TRUE(config.passes);
    EXPECT_EQ(config.shape.q_stages, stages) << dim;
    EXPECT_LE(bwd_sm90::SharedPlan(config).bytes, bwd_sm90::SharedPlan::kRoom) << dim;
  }
}

// The plan takes it where few blocks are listed, and where most are the row that has S of the next
// block beside dK. Blocks as large as tiles, and sums in a fixed order, are left to others.
TEST(TileLists, BlocksOf64InBackward) {
  const auto kernel = [](const std::string& line) {
    const Problem p = problem("b1 h16 s8192 d128 bf16 " + line, Pass::backward);
    return std::string(choose(p, machine(90), {}, kernel_table()).kernel);
  };
  for (const char* density : {"0.05", "0.25", "0.5", "0.75"})
    EXPECT_EQ(kernel(std::string("blocks=64,64:1,h:") + density), "flash_bwd_passing_sm90");
  EXPECT_EQ(kernel("blocks=64,64:1,h:1"), "flash_bwd_sm90");
  EXPECT_EQ(kernel("blocks=128,128:1,h:0.25"), "flash_bwd_sm90");
  EXPECT_EQ(kernel("blocks=64,64:1,h:0.25 deterministic"), "flash_bwd_twopass_sm80");
}

// Where the heads of a group share a list, a tile of 128 rows is a block of it for some of them.
TEST(TileLists, HeadsOfAGroupInOneTile) {
  const auto pack_shift = [](const std::string& line) {
    const Problem p = problem(line);
    const FwdSm90Tile& tile = fwd_sm90_tiles(p).front();
    const fwd_sm90::Config config = fwd_sm90_config(p, tile, false);
    EXPECT_EQ(config.pack_heads, fwd_sm90_pack_shift(p, tile) > 0) << line;
    EXPECT_TRUE(!config.pack_heads || config.lists == Lists::whole) << line;
    return fwd_sm90_pack_shift(p, tile);
  };
  EXPECT_EQ(pack_shift("b1 h4/2 s4096 d128 bf16 blocks=64,64:1,1:0.5"), 1);
  EXPECT_EQ(pack_shift("b2 h32/8 s4096 d64 bf16 blocks=32,64:b,1:0.5 causal"), 2);
  EXPECT_EQ(pack_shift("b1 h28/4 s4096 d128 bf16 blocks=16,128:1,1:0.5"), 3);
  EXPECT_EQ(pack_shift("b1 h32/8 s4096 d256 bf16 blocks=32,64:1,1:0.5"), 2);
  EXPECT_EQ(pack_shift("packed=700,33 h4/2 d128 bf16 blocks=64,64:b,1:0.5"), 1);
  // Blocks that have tiles of their own, lists of heads, blocks that are smaller than the queries
  // of a tile or than its keys, places that too many rows would leave empty, options.
  for (const char* rest :
       {"h4/2 s4096 d128 bf16 blocks=128,128:1,1:0.5", "h4/2 s4096 d64 bf16 blocks=64,64:1,1:0.5",
        "h4/2 s4096 d128 bf16 blocks=64,64:1,h:0.5", "h4/2 s4096 d128 bf16 blocks=32,64:1,1:0.5",
        "h8/2 s4096 d128 bf16 blocks=64,32:1,1:0.5", "h10/2 s4096 d128 bf16 blocks=64,64:1,1:0.5",
        "h4 s4096 d128 bf16 blocks=64,64:1,1:0.5",
        "h4/2 s4096 d128 bf16 blocks=64,64:1,1:0.5 alibi",
        "h4/2 s4096 d128 bf16 blocks=64,64:1,1:0.5 dropout=0.1"})
    EXPECT_EQ(pack_shift("b1 " + std::string(rest)), 0) << rest;
  EXPECT_EQ(pack_shift("packed=700,33 h6/2 d128 bf16 blocks=64,64:b,1:0.5"), 0);
  const Problem p = problem("b2 h8/2 s4096 d64 bf16 blocks=64,64:b,1:0.5");
  const TileListsMaker maker(
      p, {.tile_q = 32, .tile_k = 64, .kind = Lists::whole, .packs_heads = true});
  EXPECT_EQ(maker.of_queries().heads, 2);
  EXPECT_EQ(maker.of_queries().sharing, 2);
}

TEST(TileLists, TilesOfPackedSequencesAreThoseOfTheLongest) {
  const Problem p = problem("packed=700,33,129 h4/2 d64 bf16 blocks=128,128:b,1:0.5");
  const FwdSm90Tile& tile = fwd_sm90_tiles(p).front();
  const fwd_sm90::SectionOrder order =
      fwd_sm90_order(p, fwd_sm90_config(p, tile, false), tile.block_m(), 1);
  EXPECT_EQ(order.blocks, (700 + tile.block_m() - 1) / tile.block_m());
  EXPECT_EQ(order.heads, 3 * 4);
}

TEST(TileLists, ConfigOfAList) {
  const Hardware hopper = machine(90);
  const Problem whole = problem("b1 h2 s4096 d128 bf16 blocks=256,128:1,h:0.5");
  const Problem parts = problem("b1 h2 s4096 d64 bf16 blocks=128,64:1,h:0.5 causal");
  const Problem narrow = problem("b1 h2 s4096 d64 bf16 blocks=64,128:1,h:0.5");
  ASSERT_EQ(fwd_sm90_tiles(whole).size(), 1U);
  const fwd_sm90::Config a = fwd_sm90_config(whole, fwd_sm90_tiles(whole).front(), false);
  EXPECT_EQ(a.lists, Lists::whole);
  EXPECT_EQ(a.shape.block_n, 128);
  const fwd_sm90::Config b = fwd_sm90_config(parts, fwd_sm90_tiles(parts).front(), false);
  EXPECT_EQ(b.lists, Lists::whole);  // by 64 keys
  EXPECT_EQ(b.shape.block_n, 64);
  EXPECT_FALSE(b.schedule.skip_blocks || b.schedule.chain_tiles || b.schedule.halve_cut ||
               b.pack_heads);
  // The rows of each warpgroup list tiles of their own: nobody takes turns.
  const Problem small = problem("b1 h2 s4096 d64 bf16 blocks=32,64:1,h:0.5");
  const fwd_sm90::Config c = fwd_sm90_config(small, fwd_sm90_tiles(small).front(), false);
  EXPECT_EQ(c.lists, Lists::parts);
  EXPECT_EQ(c.shape.block_n, 64);
  EXPECT_FALSE(c.schedule.ping_pong);
  EXPECT_TRUE(b.schedule.ping_pong);
  // Blocks of 64 queries have tiles of their own, several of which share a multiprocessor.
  const fwd_sm90::Config d = fwd_sm90_config(narrow, fwd_sm90_tiles(narrow).front(), false);
  EXPECT_EQ(d.lists, Lists::whole);
  EXPECT_EQ(d.shape.warpgroups, 1);
  EXPECT_GT(d.shape.resident, 1);
  // With the registers of one row block and one block of the kernel where scores are modified.
  EXPECT_GT(c.shape.resident, 1);
  for (const char* blocks : {"64,64", "32,32"}) {
    const std::string line = "b1 h2 s4096 d64 bf16 softcap=20 blocks=" + std::string(blocks);
    for (const FwdSm90Tile& tile : fwd_sm90_tiles(problem(line + ":1,h:0.5"))) {
      EXPECT_EQ(tile.shape.held, 1);
      EXPECT_EQ(tile.shape.resident, 1);
    }
  }
  // For few tiles too.
  EXPECT_EQ(fwd_sm90_choose(problem("b1 h1 s1024 d128 bf16 blocks=32,32:1,1:0.5"), hopper)
                .tile->shape.held,
            1);
  const Problem many = problem("b4 h16 s16384 d128 bf16 blocks=32,32:1,1:0.25");
  EXPECT_GT(fwd_sm90_choose(many, hopper).tile->shape.held, 1);
  EXPECT_EQ(bwd_sm90_config(narrow).shape.block_m, 64);
  EXPECT_EQ(bwd_sm90_config(parts).shape.block_m, 128);
  EXPECT_EQ(bwd_sm90_config(whole).lists, Lists::parts);
  EXPECT_EQ(bwd_sm90_config(parts).lists, Lists::parts);
  // Few tiles: neither are keys split, nor tiles cut.
  const Problem few = problem("b1 h1 q64 k65536 d128 bf16 blocks=128,128:1,1:0.5");
  EXPECT_EQ(fwd_sm90_choose(few, machine(90)).splits, 1);
  EXPECT_FALSE(bwd_sm90_config(few).sums.split);
}

TEST(TileLists, OfTheSm80Rows) {
  for (const int arch : {80, 86, 90}) {
    for (const char* type : {"f32", "bf16", "f16"}) {
      for (const char* rest :
           {"d64 blocks=128,128:1,h:0.5", "d128 blocks=16,256:b,h:0.5 causal",
            "d256 blocks=64,64:1,1:0.5 lengths=4096,7", "d40 blocks=32,32:1,1:0.5 dropout=0.1",
            "d64 blocks=64,64:1,h:0.5 bias=1,h,q,k sink", "d64 blocks=64,64:1,h:0.5 softcap=20"}) {
        const std::string line = std::string("b2 h4/2 s4096 ") + type + " " + rest;
        EXPECT_EQ(refusal_by(kFlashForwardSm80, problem(line), machine(arch)), "") << line;
        const Problem back = problem(line, Pass::backward);
        EXPECT_EQ(refusal_by(kFlashBackwardTwoPassSm80, back, machine(arch)), "") << line;
        if (back.dtype == DType::float32) continue;
        EXPECT_EQ(refusal_by(kFlashBackwardSm80, back, machine(arch)), "") << line;
      }
    }
  }
  const std::string odd = "b1 h1 s512 d64 f32 blocks=48,64:1,1:0.5";
  EXPECT_NE(refusal_by(kFlashForwardSm80, problem(odd), machine(80)).find("48 x 64"),
            std::string::npos);
  EXPECT_NE(refusal_by(kFlashBackwardTwoPassSm80, problem(odd, Pass::backward), machine(80))
                .find("48 x 64"),
            std::string::npos);
  // Bits of blocks of a row of tiles need more shared memory than an sm_86 has.
  const std::string many = "b1 h1 q64 k1000000 d64 bf16 blocks=16,16:1,1:0.01";
  EXPECT_EQ(refusal_by(kFlashForwardSm80, problem(many), machine(80)), "");
  EXPECT_NE(refusal_by(kFlashForwardSm80, problem(many), machine(86)).find("key blocks"),
            std::string::npos);
}

TEST(TileLists, Sm80RowsTakeKeysAndQueriesWhole) {
  const std::string small = "b1 h1 q64 k8192 d64 bf16";
  const std::string list = small + " blocks=64,64:1,1:0.5";
  EXPECT_GT(cost_by(kFlashForwardSm80, problem(small), machine(80)).splits, 1);
  EXPECT_EQ(cost_by(kFlashForwardSm80, problem(list), machine(80)).splits, 1);
  EXPECT_EQ(cost_by(kFlashBackwardTwoPassSm80, problem(list, Pass::backward), machine(80)).splits,
            1);
  EXPECT_EQ(cost_by(kFlashBackwardSm80, problem(list, Pass::backward), machine(80)).splits, 1);
  // Each query head of a group has a list of its own: they are not rows of one head.
  const Problem one = problem("b1 h8/1 q1 k2500 d64 f32 blocks=16,64:1,h:0.2");
  EXPECT_EQ(listed_bytes(cost_by(kFlashForwardSm80, one, machine(80))) % 8, 0);
  EXPECT_TRUE(bwd_tiles::make_config(one, bwd_tiles::two_pass_tiles(one)[0].keys,
                                     bwd_tiles::Launch::keys, false, 163)
                  .listed());
}

TEST(TileLists, ListsOfEntriesWithLengths) {
  const std::string head = "b3 h4/2 s1024 d64 bf16 blocks=128,128:";
  const auto lists = [&](const std::string& rest) { return rows_of(problem(head + rest)) / 8; };
  EXPECT_EQ(lists("1,1:0.5"), 1);
  EXPECT_EQ(lists("1,h:0.5"), 4);
  EXPECT_EQ(lists("b,1:0.5"), 3);
  EXPECT_EQ(lists("b,h:0.5"), 12);
  EXPECT_EQ(lists("1,h:0.5 lengths=1024,7,0"), 12);
  const Problem packed = problem("h4/2 packed=700,0,1024 d64 bf16 blocks=128,128:1,h:0.5");
  EXPECT_EQ(rows_of(packed) / 8, 12);
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

/// A mask function has a list that the device makes of it, where sequences are long.
// An H200 took 0.379 ms by flash_fwd_sm80, whose tiles of 128 rows see two lists, and 0.239 ms by
// flash_fwd_sm90 for twice the pairs.
TEST(TileLists, ATileOfTwoListsSeesBoth) {
  const Hardware hopper = machine(90);
  for (const char* density : {"0.05", "0.02"}) {
    const Problem p = problem(std::string("b2 h16 s8192 d128 bf16 blocks=64,64:b,h:") + density);
    EXPECT_LT(cost_by(kFlashForwardSm90, p, hopper).ms, cost_by(kFlashForwardSm80, p, hopper).ms)
        << density;
  }
}

// An H200 took 0.2345 ms by flash_fwd_sm80 and 0.2544 ms by flash_fwd_sm90 for twice the pairs.
TEST(TileLists, FewBlocksOf64InForward) {
  for (const char* line : {"b2 h32 s8192 d64 bf16 blocks=64,64:1,h:0.046875",
                           "b1 h32 s16384 d64 bf16 blocks=64,64:1,h:0.05"}) {
    const Problem p = problem(line);
    EXPECT_EQ(choose(p, machine(90), {}, kernel_table()).kernel, "flash_fwd_sm90") << line;
  }
}

// Rows of tiles are as many for each sequence as for the longest. Those beyond its end take no
// time, so that 15 sequences of 64 queries beside one of 8,192 cost little.
TEST(TileLists, ShortSequencesCostLittle) {
  const Hardware hopper = machine(90);
  std::string lengths = "8192";
  for (int n = 0; n < 15; ++n) lengths += ",64";
  const std::string list = " h16 d128 bf16 blocks=64,64:1,h:0.25";
  const Cost packed = cost_by(kFlashForwardSm90, problem("packed=" + lengths + list), hopper);
  const Cost alone = cost_by(kFlashForwardSm90, problem("packed=8192" + list), hopper);
  EXPECT_LT(packed.ms, 1.25 * alone.ms);
  EXPECT_GT(packed.ms, alone.ms);
}

// An H200, 2 x 8,192 tokens of hidden 2048 (lists-sm90-tried.csv, 08:20).
Hardware h200() {
  Hardware m = machine(90, 4800.0);
  m.matrix_tflops = 1070.5;
  m.float32_tflops = 66.9;
  return m;
}
TEST(TileLists, TwoPassesTakeTheListsTime) {
  struct Timed {
    const char* line;
    double ms;
  };
  for (const Timed& timed : {Timed{"h32 d64 blocks=128,128:1,h:0.25", 3.0494},
                             {"h32 d64 blocks=128,128:1,h:0.09375", 1.2887},
                             {"h32 d64 blocks=64,64:1,h:0.25", 6.3175},
                             {"h32 d64 blocks=64,64:1,h:0.1015625", 2.9864},
                             {"h16 d128 blocks=128,128:1,h:0.25", 2.8905},
                             {"h16 d128 blocks=128,128:1,h:0.09375", 1.202},
                             {"h16 d128 blocks=64,64:1,h:0.25", 3.8296},
                             {"h16 d128 blocks=64,64:1,h:0.1015625", 1.7603}}) {
    const std::string line = "b2 s8192 bf16 deterministic " + std::string(timed.line);
    const double ms = cost_by(kFlashBackwardTwoPassSm80, problem(line, Pass::backward), h200()).ms;
    EXPECT_GT(ms, 0.75 * timed.ms) << line;
    EXPECT_LT(ms, 1.15 * timed.ms) << line;
  }
}

TEST(TileLists, OfMaskFunctions) {
  const std::string mask = " mask_expr='doc[i] == doc[j] & i >= j' captures='doc:i32[Sk]=j // 100'";
  const Hardware hopper = machine(90);
  const auto config = [](const Problem& p) {
    return fwd_sm90_config(p, fwd_sm90_tiles(p)[0], false);
  };
  for (const char* shape : {"b2 h4 s2048 d64 bf16", "b1 h6 q600 k900 d128 f16 lengths=300"}) {
    const Problem forward = problem(shape + mask);
    EXPECT_TRUE(maps_mask(forward)) << shape;
    EXPECT_EQ(config(forward).lists, Lists::whole);
    EXPECT_TRUE(config(forward).trusts_maxima());
    EXPECT_GT(listed_bytes(cost_by(kFlashForwardSm90, forward, hopper)), 0);
    const Problem backward = problem(shape + mask, Pass::backward);
    EXPECT_EQ(bwd_sm90_config(backward).lists, Lists::whole);
    EXPECT_GT(listed_bytes(cost_by(kFlashBackwardSm90, backward, hopper)), 0);
  }
  // Causal alone is no function, a list of the caller's is hers, and the others have no room or
  // need.
  for (const std::string& line :
       {std::string("b2 h4 s2048 d64 bf16 mask_expr='i >= j'"),
        "b2 h4 s2048 d64 bf16 blocks=128,128:1,1:0.5" + mask, "b2 h4 s300 d64 bf16" + mask,
        "packed=300,400 h2 d64 bf16" + mask}) {
    EXPECT_FALSE(maps_mask(problem(line))) << line;
  }
}

TEST(TileLists, DocumentsArePackedSequences) {
  const std::string doc = " captures='doc:i32[Sk]=j // 300; by:i64[B,Sk]=j; real:f32[Sk]=j // 300'";
  const auto compares = [&](const std::string& line) {
    return compares_documents(problem(line + doc));
  };
  const std::string shape = "b2 h4 s2048 d64 bf16";
  EXPECT_TRUE(compares(shape + " mask_expr='doc[i] == doc[j] & i >= j'"));
  const std::string one = "b1 h4 s2048 d64 bf16 mask_expr='by[b, j] == by[b, i]'";
  EXPECT_TRUE(compares(one + " window=300,20 softcap=20 alibi"));
  EXPECT_FALSE(compares(shape + " mask_expr='by[b, j] == by[b, i]'")) << "another entry decides";
  EXPECT_FALSE(compares(shape + " deterministic mask_expr='doc[i] == doc[j]'"));
  EXPECT_FALSE(compares(shape + " score='score - 0.1*float(i)' mask_expr='doc[i] == doc[j]'"));
  EXPECT_FALSE(compares(shape + " sink mask_expr='doc[i] == doc[j]'"));
  EXPECT_FALSE(compares(shape + " mask_expr='doc[i] == doc[j] | j < 4'"));
  EXPECT_FALSE(compares(shape + " mask_expr='real[i] == real[j]'"));
  EXPECT_FALSE(compares(shape + " mask_expr='doc[i] == by[b, j]'"));
  EXPECT_FALSE(compares("b2 h4 s300 d64 bf16 mask_expr='doc[i] == doc[j]'")) << "few tiles";
  EXPECT_FALSE(compares("b2 h4 q600 k2048 d64 bf16 mask_expr='doc[i] == doc[j]'"));
  // Their row blocks take workspace beside that of the map.
  const Problem p = problem(shape + " mask_expr='doc[i] == doc[j]'" + doc);
  const Cost cost = cost_by(kFlashForwardSm90, p, machine(90));
  const auto of_documents = [](const MemoryPart& part) {
    return std::string(part.name) == "row blocks of documents";
  };
  EXPECT_EQ(std::count_if(cost.memory.begin(), cost.memory.end(), of_documents), 1);
}

TEST(TileLists, OfMaskFunctionsOfPackedSequences) {
  const std::string mask = " mask_expr='doc[i] == doc[j]' captures='doc:i32[Sk]=j // 100'";
  const std::string line = "packed=700,900 h2 d64 bf16" + mask;
  const Problem forward = problem(line), backward = problem(line, Pass::backward);
  EXPECT_TRUE(maps_mask(forward));
  EXPECT_EQ(fwd_sm90_config(forward, fwd_sm90_tiles(forward)[0], false).lists, Lists::whole);
  EXPECT_EQ(rows_of(forward), 2 * 8);
  EXPECT_EQ(bwd_sm90_config(backward).lists, Lists::whole);
  // Lists would mostly have rows of no sequence, or the others would decide the order of tiles.
  EXPECT_FALSE(maps_mask(problem("packed=9000,1,1,1,1,1,1 h2 d64 bf16" + mask)));
  EXPECT_FALSE(maps_mask(problem(line + " deterministic")));
}

TEST(TileLists, OfMaskFunctionsOnSm80) {
  const std::string mask = " mask_expr='doc[i] == doc[j]' captures='doc:i32[Sk]=j // 100'";
  for (const char* shape : {"b1 h2 s1024 d64 f32", "packed=700,900 h2 d64 bf16"}) {
    const Problem forward = problem(shape + mask), backward = problem(shape + mask, Pass::backward);
    const Cost cost = cost_by(kFlashForwardSm80, forward, machine(80));
    EXPECT_GT(listed_bytes(cost), 0) << shape;
    EXPECT_EQ(cost.splits, 1) << shape;
    EXPECT_GT(listed_bytes(cost_by(kFlashBackwardTwoPassSm80, backward, machine(80))), 0) << shape;
    EXPECT_EQ(bwd_tiles::make_config(backward, bwd_tiles::two_pass_tiles(backward)[0].keys,
                                     bwd_tiles::Launch::keys, false, 163)
                  .lists,
              Lists::whole);
  }
  // Split keys, which have no map, must not look faster than Hopper's row.
  const Problem one_head = problem("h1 s8192 d64 bf16" + mask);
  EXPECT_LT(cost_by(kFlashForwardSm90, one_head, machine(90)).ms,
            cost_by(kFlashForwardSm80, one_head, machine(90)).ms);
}

}  // namespace
}  // namespace tilewise::cuda
