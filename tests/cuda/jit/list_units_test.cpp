// Kernels with a block list compile, one of each kind: none of them is in the pack.
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>

#include "cuda/host/common.h"
#include "cuda/jit/compile.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/kernels/bwd_sm80/bias.h"
#include "cuda/kernels/bwd_sm80/captures.h"
#include "cuda/kernels/bwd_sm80/gate.h"
#include "cuda/kernels/bwd_sm80/tiles.h"
#include "cuda/kernels/bwd_sm90/tiles.h"
#include "cuda/kernels/bwd_sm90/unit.h"
#include "cuda/kernels/fwd_sm80/tiles.h"
#include "cuda/kernels/fwd_sm90/tiles.h"
#include "cuda/kernels/fwd_sm90/unit.h"
#include "cuda/machine.h"
#include "harness/case.h"
#include "harness/materialize.h"

namespace tilewise::cuda {
namespace {

Problem problem(const std::string& line, Pass pass) {
  const PlannedCase planned(parse_case(line), kCuda);
  return pass == Pass::forward ? make_problem(planned.forward(), planned.spec(), Purpose::plan)
                               : make_problem(planned.backward(), planned.spec(), Purpose::plan);
}

/// Without a note of serialised products.
void expect_compiles(const KernelUnit& unit, int arch) {
  if (find_nvrtc() == nullptr) GTEST_SKIP() << "no NVRTC";
  const Compiled made = compile(unit, arch);
  EXPECT_FALSE(made.cubin.empty()) << unit.name() << " " << unit.config;
  EXPECT_TRUE(made.report.notes.empty()) << unit.name() << " " << unit.config;
}

TEST(ListUnits, ForwardOfTheSm80Rows) {
  // The last tile has warps that share rows.
  const Problem half = problem("b2 h4/2 s512 d64 bf16 blocks=32,32:1,h:0.5 causal", Pass::forward);
  for (const fwd_tiles::Tile& tile :
       {fwd_tiles::tiles(half).front(), fwd_tiles::tiles(half).back()})
    expect_compiles(fwd_tiles::unit(fwd_tiles::make_config(half, tile, false, 163), 1), 80);
  const Problem exact = problem("h4/2 packed=300,7 d128 f32 blocks=64,64:1,h:0.5", Pass::forward);
  const fwd_tiles::Tile& tile = fwd_tiles::tiles(exact)[0];
  expect_compiles(fwd_tiles::unit(fwd_tiles::make_config(exact, tile, false, 227), 2), 90);
}

TEST(ListUnits, BackwardOfTheSm80Rows) {
  using namespace bwd_tiles;
  const Problem half = problem("b2 h4/2 s512 d128 bf16 blocks=32,32:1,h:0.5", Pass::backward);
  const Tile& one = one_pass_tiles(half)[0];
  expect_compiles(key_unit(make_config(half, one, Launch::all, false, 163), one.min_blocks), 80);
  const Problem exact =
      problem("b2 h4 s512 d64 f32 blocks=64,64:1,h:0.5 bias=1,h,q,k", Pass::backward);
  const TilePair& two = two_pass_tiles(exact)[0];
  expect_compiles(key_unit(make_config(exact, two.keys, Launch::keys, false, 227), 2), 90);
  const bwd_sm80::Config queries = make_config(exact, two.queries, Launch::queries, false, 227);
  expect_compiles(query_unit(queries, 2), 90);
  expect_compiles(refine_unit(queries, 2), 90);
  expect_compiles(bias_unit(queries, 2), 90);
}

TEST(ListUnits, GatesOfBlocks) {
  using namespace bwd_tiles;
  const std::string head = "b2 h4/2 s512 d64 bf16 ";
  const Problem p = problem(head +
                                "blocks=64,64:1,h:0.5 score='score + gate[b, h, i // 64, j // 32]'"
                                " captures='gate:f32[B,Hq,8,16]'",
                            Pass::backward);
  const std::optional<Gate> gate = gate_of(p, 0);
  ASSERT_TRUE(gate.has_value());
  EXPECT_EQ(gate->sizes, (std::array<int, 4>{2, 4, 8, 16}));
  EXPECT_EQ(gate->per[2], 64);
  EXPECT_EQ(gate->per[3], 32);
  const Tile& queries = two_pass_tiles(p)[0].queries;
  expect_compiles(
      gate_unit(make_config(p, queries, Launch::queries, false, 227), queries.min_blocks, p, 0),
      90);
  // What pairs of a block read several elements of, and what has few elements, is none.
  for (const char* other :
       {"score='score + x[h, i - j + 511]' captures='x:f32[Hq,1023]'",
        "score='score*x[h]' captures='x:f32[Hq]'",
        "score='score + x[i // 8, j // 64]' captures='x:f32[64,8]'",
        "score='score + x[i // 64, j // 64] + x[0, 0]' captures='x:f32[8,8]'"}) {
    const Problem q = problem(head + other, Pass::backward);
    EXPECT_FALSE(gate_of(q, 0).has_value()) << other;
  }
}

TEST(ListUnits, OfTheHopperRows) {
  for (const char* line :
       {"b2 h4/2 s2048 d64 bf16 blocks=64,64:1,h:0.5",
        "b2 h4 s2048 d128 f16 blocks=128,128:1,h:0.5 causal",
        "b2 h4 s2048 d128 bf16 blocks=16,32:b,h:0.5 lengths=2048,100 window=100,100"}) {
    const Problem forward = problem(line, Pass::forward);
    expect_compiles(fwd_sm90_unit(fwd_sm90_config(forward, fwd_sm90_tiles(forward).front(), false)),
                    90);
    expect_compiles(bwd_sm90_unit(bwd_sm90_config(problem(line, Pass::backward))), 90);
  }
}

}  // namespace
}  // namespace tilewise::cuda
