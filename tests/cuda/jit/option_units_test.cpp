// Kernels that the pack leaves to their first use, held to what the census holds packed ones to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "cuda/jit/census.h"
#include "cuda/jit/compile.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/jit/pack.h"
#include "cuda/kernels/bwd_short_sm90/row.h"
#include "cuda/kernels/bwd_sm80/row.h"
#include "cuda/kernels/bwd_sm80/tiles.h"
#include "cuda/kernels/bwd_sm90/row.h"
#include "cuda/kernels/fwd_sm80/row.h"
#include "cuda/kernels/fwd_sm80/tiles.h"
#include "cuda/kernels/fwd_sm90/row.h"

namespace tilewise::cuda {
namespace {

/// The unit, compiled. Prints its CPU seconds, which depend on the machine and are not judged.
KernelEntry compiled(const KernelUnit& unit, int arch) {
  KernelEntry entry = make_entry(unit, arch, compile(unit, arch));
  std::printf("%s {%s} for %d: %lld bytes of machine code, %.2f s\n", unit.name().c_str(),
              unit.config.c_str(), arch, static_cast<long long>(entry.cubin_bytes),
              entry.report.seconds);
  return entry;
}

class OptionUnits : public testing::TestWithParam<int> {};

TEST_P(OptionUnits, CompileCleanly) {
  std::string why_not;
  if (find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  const int arch = GetParam();
  std::vector<PackUnit> units;
  add_fwd_sm80_dropout_units(units, arch);
  add_bwd_sm80_option_units(units, arch);
  EXPECT_GE(units.size(), 6U);
  for (const PackUnit& held : units) {
    const KernelEntry entry = compiled(held.unit, arch);
    for (const std::string& fault : census_faults(held, entry, arch)) {
      ADD_FAILURE() << held.unit.name() << " {" << held.unit.config << "} for " << arch << ": "
                    << fault;
    }
  }
}

/// Compile cleanly, but for spills of at most so many bytes.
void expect_clean(const std::vector<PackUnit>& units, int spills) {
  for (const PackUnit& held : units) {
    KernelEntry entry = compiled(held.unit, 90);
    CompileReport& report = entry.report;
    EXPECT_LE(std::max(report.spill_store_bytes, report.spill_load_bytes), spills)
        << held.unit.name() << " {" << held.unit.config << '}';
    report.spill_store_bytes = std::min(report.spill_store_bytes, held.allowed_spill_bytes);
    report.spill_load_bytes = std::min(report.spill_load_bytes, held.allowed_spill_bytes);
    for (const std::string& fault : census_faults(held, entry, 90)) {
      ADD_FAILURE() << held.unit.name() << " {" << held.unit.config << "}: " << fault;
    }
  }
}

TEST(WideUnits, CompileCleanly) {
  std::string why_not;
  if (find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  std::vector<PackUnit> units;
  add_bwd_sm90_large_dim_units(units, 80);
  EXPECT_TRUE(units.empty());
  add_bwd_sm90_large_dim_units(units, 90);
  EXPECT_EQ(units.size(), 8U);
  // At dim 256 those who compute spill outside of their loops too, so that it is more than a
  // packed kernel may (bwd_sm90/README.md).
  expect_clean(units, 88);
}

// At dim 128 the sums take all registers but what a step needs: what spills is used outside of the
// loops over blocks, most of it for packed sequences.
TEST(ShortUnits, CompileCleanly) {
  std::string why_not;
  if (find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  std::vector<PackUnit> units, exact;
  add_bwd_short_sm90_units(units, 90, false);
  add_bwd_short_sm90_units(exact, 90, true);
  EXPECT_EQ(units.size() + exact.size(), 4U);
  expect_clean(units, 160);
  expect_clean(exact, 64);
}

TEST(GroupedUnits, CompileCleanly) {
  std::string why_not;
  if (find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  std::vector<PackUnit> units;
  add_bwd_sm90_grouped_units(units, 80);
  EXPECT_TRUE(units.empty());
  add_bwd_sm90_grouped_units(units, 90);
  EXPECT_EQ(units.size(), 2U);
  for (const PackUnit& held : units) {
    EXPECT_NE(held.unit.config.find(".split = true"), std::string::npos);
  }
  // The producer's queue has one more kind of job, and the end of a part takes registers.
  expect_clean(units, 112);
}

// Head dims above 256: the largest tiles. Smaller ones spill up to 300 bytes.
TEST(SlicedUnits, CompileCleanly) {
  std::string why_not;
  if (find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  Problem p;
  p.dtype = DType::bfloat16;
  p.scale = 1.0F;
  p.batch = p.heads_q = p.heads_k = 64;
  p.seq_q = p.seq_k = 1024;
  p.head_dim = p.head_dim_v = 512;
  constexpr int kKib = 227;
  std::vector<PackUnit> units;
  const auto add = [&](KernelUnit unit, const KernelRow& row) {
    units.push_back({.unit = std::move(unit),
                     .row = row.name,
                     .instruction = "mma.sync",
                     .allowed_spill_bytes = 64});
  };
  const fwd_tiles::Tile& tile = fwd_tiles::tiles(p)[0];
  add(fwd_tiles::unit(fwd_tiles::make_config(p, tile, false, kKib), tile.min_blocks),
      kFlashForwardSm80);
  using namespace bwd_tiles;
  const TilePair& pair = two_pass_tiles(p)[0];
  const Config keys = make_config(p, pair.keys, Launch::keys, false, kKib);
  const Config queries = make_config(p, pair.queries, Launch::queries, false, kKib);
  add(key_unit(key_launches(p, pair, keys)[1], pair.keys.min_blocks), kFlashBackwardTwoPassSm80);
  add(query_unit(query_launches(p, pair, queries)[1], pair.queries.min_blocks),
      kFlashBackwardTwoPassSm80);
  expect_clean(units, 64);
}

// Above plain units: dropout at dim 64 makes its bits beside O and P.
TEST(Sm90OptionUnits, CompileCleanly) {
  std::string why_not;
  if (find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  std::vector<PackUnit> units;
  add_fwd_sm90_option_units(units, 80);
  add_bwd_sm90_option_units(units, 80);
  EXPECT_TRUE(units.empty());
  add_fwd_sm90_option_units(units, 90);
  add_bwd_sm90_option_units(units, 90);
  EXPECT_EQ(units.size(), 14U);
  const auto has_bias = [](const PackUnit& held) {
    return held.unit.config.find(".pairs") != std::string::npos;
  };
  std::vector<PackUnit> biased;
  std::ranges::copy_if(units, std::back_inserter(biased), has_bias);
  std::erase_if(units, has_bias);
  EXPECT_FALSE(biased.empty());
  expect_clean(units, 160);
  expect_clean(biased, 24);
}

// At dim 64 forward the producer has 32 registers, backward 24: it spills, consumers hardly do.
TEST(MaskTileUnits, CompileCleanly) {
  std::string why_not;
  if (find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  std::vector<PackUnit> units;
  add_fwd_sm90_mask_units(units, 90);
  add_bwd_sm90_mask_units(units, 90);
  EXPECT_EQ(units.size(), 3U);
  expect_clean(units, 352);
}

// A unit with a list spills up to 252 bytes, the producer's; this one looks at bits of blocks too.
TEST(PassingUnits, CompileCleanly) {
  std::string why_not;
  if (find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  std::vector<PackUnit> units;
  add_bwd_sm90_passing_units(units, 80);
  EXPECT_TRUE(units.empty());
  add_bwd_sm90_passing_units(units, 90);
  EXPECT_EQ(units.size(), 2U);
  expect_clean(units, 288);
}

// Two or three blocks of the kernel on a multiprocessor: the producer has as many registers as who
// computes.
TEST(ListedUnits, CompileCleanly) {
  std::string why_not;
  if (find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  std::vector<PackUnit> units;
  add_fwd_sm90_listed_units(units, 90);
  EXPECT_EQ(units.size(), 2U);
  expect_clean(units, 0);
}

// 86 and 89 have the shared memory of 120, and 100 that of 90.
INSTANTIATE_TEST_SUITE_P(Architectures, OptionUnits, testing::Values(80, 90, 120));

}  // namespace
}  // namespace tilewise::cuda
