/// Which schedule takes few rows, and what workers of one share.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cpu/flash/decode_geometry.h"
#include "harness/device_memory.h"
#include "harness/materialize.h"
#include "plan/choose.h"
#include "tilewise/runtime.h"

namespace tilewise::cpu {
namespace {

class Schedules : public testing::Test {
 protected:
  MaterializedCase made(const std::string& text) const {
    return MaterializedCase(parse_case(text), 5, *memory_);
  }
  Plan plan(const std::string& text, const char* isa) const {
    Hardware machine = hardware();
    machine.isa = isa;
    const MaterializedCase inputs = made(text);
    return choose(make_problem(inputs.forward(), inputs.spec(), Purpose::run), machine, {},
                  kernel_table());
  }
  /// Strips of flash_decode have no more rows.
  bool takes_tiles(const std::string& text) const {
    return plan(text, "avx2").block_m > kStripRows;
  }

 private:
  std::unique_ptr<DeviceMemory> memory_ = device_memory({});
};

TEST_F(Schedules, FewRowsOfOneHeadTakeTilesThatTheyFill) {
  EXPECT_TRUE(takes_tiles("b2 h2 s16 d64 f32 pass=fwd"));
  EXPECT_TRUE(takes_tiles("b2 h2 s7 d32 f32 pass=fwd"));
  EXPECT_TRUE(takes_tiles("b2 h2 q13 k200 d128 f32 pass=fwd"));
  // Fewer rows, or keys that do not stay in cache.
  EXPECT_FALSE(takes_tiles("b2 h2 s6 d32 f32 pass=fwd"));
  EXPECT_FALSE(takes_tiles("b2 h2 s12 d128 f32 pass=fwd"));
  EXPECT_FALSE(takes_tiles("b2 h2 q16 k600 d64 f32 pass=fwd"));
  // Heads that share keys, and keys that a tile would copy first.
  EXPECT_FALSE(takes_tiles("b2 h4/2 s8 d32 f32 pass=fwd"));
  EXPECT_FALSE(takes_tiles("b2 h2 s16 d64 f16 pass=fwd"));
  EXPECT_FALSE(takes_tiles("b1 h2 q16 k64 d64 f32 paged=16 lengths=64 pass=fwd"));
}

TEST_F(Schedules, KeysOfSeveralRowsArePacked) {
  const auto packs = [&](const std::string& text, Isa isa) {
    const MaterializedCase inputs = made(text);
    return DecodeGeometry(make_problem(inputs.forward(), inputs.spec(), Purpose::run), isa, 1)
        .packs;
  };
  EXPECT_TRUE(packs("b1 h8/2 q3 k900 d64 f32 pass=fwd", Isa::avx512));
  EXPECT_FALSE(packs("b1 h8/2 q2 k900 d64 f32 pass=fwd", Isa::avx512));
  EXPECT_FALSE(packs("b1 h8/2 q3 k900 d64 f32 pass=fwd", Isa::avx2));
  EXPECT_FALSE(packs("b1 h8/2 q3 k900 d64 f32 layout=bshd pass=fwd", Isa::avx512));
  EXPECT_FALSE(packs("b1 h8/2 q3 k900 d64 f16 pass=fwd", Isa::avx512));
}

TEST_F(Schedules, WorkersOfDecodingShareNoPage) {
  const MaterializedCase inputs = made("b4 h2 s5 d32 f32 pass=fwd");
  const DecodeGeometry g(make_problem(inputs.forward(), inputs.spec(), Purpose::run), Isa::scalar,
                         2);
  std::vector<float> memory(static_cast<std::size_t>(2 * DecodeScratch::elems(g)));
  const DecodeScratch first(g, memory.data(), 0);
  const DecodeScratch second(g, memory.data(), 1);
  constexpr std::ptrdiff_t kPageElems = 4096 / sizeof(float);
  EXPECT_GE(second.o - first.v, kPageElems);  // V is read where it lies: first.v is an end
}

/// As many workers as the plan has, one after the other.
class Serial final : public Executor {
 public:
  int regions = 0;

  int concurrency() const override { return 2; }
  void parallel_for(std::int64_t tasks, const Body& body) override {
    if (tasks > 0) ++regions;
    for (std::int64_t task = 0; task < tasks; ++task) body(task, 0);
  }
};

TEST_F(Schedules, WorkersTakePairsWhole) {
  const auto regions = [&](const std::string& text) {
    const MaterializedCase inputs = made(text);
    const Problem p = make_problem(inputs.forward(), inputs.spec(), Purpose::run);
    Serial executor;
    std::vector<int> packed(static_cast<std::size_t>(p.batch * p.heads_k));
    std::vector<int> attended(packed.size());
    run_forward(
        p, executor,
        {.pairs = p.batch * p.heads_k,
         .key_blocks = 2,
         .row_blocks = 3,
         .workers = 2,
         .pack = [&](auto pair, auto, auto, int) { ++packed[static_cast<std::size_t>(pair)]; },
         .attend = [&](auto pair, auto, auto, auto,
                       int) { ++attended[static_cast<std::size_t>(pair)]; }});
    EXPECT_EQ(packed, std::vector<int>(packed.size(), 2)) << text;
    EXPECT_EQ(attended, std::vector<int>(packed.size(), 3)) << text;
    return executor.regions;
  };
  EXPECT_EQ(regions("b1 h8 s40 d16 f32 pass=fwd"), 1);
  EXPECT_EQ(regions("b33 h1 s40 d16 f32 pass=fwd"), 1);
  EXPECT_EQ(regions("b1 h7 s40 d16 f32 pass=fwd"), 3);  // both pack and attend to the last pair
  EXPECT_EQ(regions("b1 h3 s40 d16 f32 pass=fwd"), 2);
  EXPECT_EQ(regions("b8 h1 s40 d16 f32 lengths=40,40,40,40,40,40,40,7 pass=fwd"), 2);
}

}  // namespace
}  // namespace tilewise::cpu
