#include "guard_units.h"

#include <set>
#include <string>
#include <utility>

#include "cuda/host/expressions.h"
#include "cuda/kernels/bwd_short_sm90/row.h"
#include "cuda/kernels/bwd_sm80/bias.h"
#include "cuda/kernels/bwd_sm80/row.h"
#include "cuda/kernels/bwd_sm80/tiles.h"
#include "cuda/kernels/bwd_sm90/dq/launch.h"
#include "cuda/kernels/bwd_sm90/row.h"
#include "cuda/kernels/bwd_sm90/tiles.h"
#include "cuda/kernels/bwd_sm90/unit.h"
#include "cuda/kernels/decode_sm90/choice.h"
#include "cuda/kernels/fwd_sm80/row.h"
#include "cuda/kernels/fwd_sm80/tiles.h"
#include "cuda/kernels/fwd_sm90/row.h"
#include "cuda/kernels/fwd_sm90/tiles.h"
#include "cuda/kernels/fwd_sm90/unit.h"
#include "cuda/kernels/mla_sm90/choice.h"
#include "guard_draw.h"

namespace tilewise::cuda {
namespace {

/// Drawn: units of plain problems; problems of each kind; problems of the sm_80 rows.
constexpr int kDrawnUnits = 60, kDrawnOptions = 12, kDrawnMma = 24, kDrawnMmaPages = 4;

/// Distinct units, in the order in which they were first named.
class UnitList {
 public:
  void add(KernelUnit unit, int arch) {
    std::string name = unit.name() + ' ' + std::to_string(arch) + ' ' + unit.config;
    if (names_.insert(std::move(name)).second) units_.push_back({std::move(unit), arch});
  }
  void add(std::vector<PackUnit> packed, int arch) {
    for (PackUnit& held : packed) add(std::move(held.unit), arch);
  }
  std::size_t size() const { return units_.size(); }
  std::vector<TargetUnit> take() { return std::move(units_); }

 private:
  std::set<std::string> names_;
  std::vector<TargetUnit> units_;
};

/// Units of both passes on Hopper; `split`: keys of the forward in parts.
void add_sm90(UnitList& units, Problem p, const FwdSm90Tile& tile, bool split) {
  const auto add = [&](KernelUnit unit, const tile::Expressions& of) {
    units.add(of.any() ? with_expressions(std::move(unit), p, of.strip) : std::move(unit), 90);
  };
  const fwd_sm90::Config forward = fwd_sm90_config(p, tile, split);
  add(fwd_sm90_unit(forward), forward.expressions);
  if (p.paged) return;
  p.pass = Pass::backward;
  const bwd_sm90::Config config = bwd_sm90_config(p);
  add(bwd_sm90_unit(config), config.expressions);
  if (config.large_dim()) units.add(bwd_dq_sm90_unit(bwd_dq_sm90::config_beside(config)), 90);
}

void add_drawn(UnitList& units) {
  ProblemDraw draw(16);
  const std::size_t wanted = units.size() + kDrawnUnits;
  while (units.size() < wanted) {
    const Problem p = draw.problem();
    const auto tiles = fwd_sm90_tiles(p);
    const FwdSm90Tile& tile = tiles[draw.below(tiles.size())];
    add_sm90(units, p, tile, draw.below(2) == 1);
  }
}

/// Block lists, pages, functions.
void add_drawn_options(UnitList& units) {
  ProblemDraw draw(17);
  for (int i = 0; i < kDrawnOptions; ++i) {
    for (const Problem& p : {draw.listed(), draw.paged(), draw.expressed()}) {
      const auto tiles = fwd_sm90_tiles(p);
      add_sm90(units, p, tiles[draw.below(tiles.size())], false);
    }
  }
}

/// A launch of either pass on mma.sync.
void add_mma(UnitList& units, Problem p, ProblemDraw& draw) {
  constexpr int kArch = 80;
  const int kib = host::shared_kib(kArch);
  const auto add = [&](KernelUnit unit) {
    if (unit.shared_bytes > kib * 1024) return;
    units.add(expressions_of(p).any() ? with_expressions(std::move(unit), p) : std::move(unit),
              kArch);
  };
  const auto tiles = fwd_tiles::tiles(p);
  const fwd_tiles::Tile& tile = tiles[draw.below(tiles.size())];
  const bool split = !p.block_list.defined() && draw.below(4) == 1;
  add(fwd_tiles::unit(fwd_tiles::make_config(p, tile, split, kib), tile.min_blocks));
  if (p.paged) return;
  using namespace bwd_tiles;
  p.pass = Pass::backward;
  const std::size_t launch = draw.below(4);
  if (launch == 0 && p.dtype != DType::float32 && p.head_dim <= 256) {
    const Tile& one = one_pass_tiles(p)[0];
    return add(key_unit(make_config(p, one, Launch::all, false, kib), one.min_blocks));
  }
  const TilePair& two = two_pass_tiles(p)[0];
  if (launch <= 1) {
    const Config keys = make_config(p, two.keys, Launch::keys, false, kib);
    return add(key_unit(key_launches(p, two, keys).back(), two.keys.min_blocks));
  }
  const Config queries = make_config(p, two.queries, Launch::queries, false, kib);
  if (launch == 2) return add(refine_unit(queries, two.queries.min_blocks));
  add(query_unit(query_launches(p, two, queries).back(), two.queries.min_blocks));
  if (p.bias.defined()) add(bias_unit(queries, two.queries.min_blocks));
}

void add_drawn_mma(UnitList& units) {
  ProblemDraw draw(18);
  for (int i = 0; i < kDrawnMma; ++i) add_mma(units, draw.mma(), draw);
  for (int i = 0; i < kDrawnMmaPages; ++i) add_mma(units, draw.paged(), draw);
}

/// Each field of the two configs of decoding in a value that the pack does not hold.
void add_decoding(UnitList& units) {
  using Config = decode_sm90::Config;
  for (const Config& config :
       {Config{.element = tile::Element::fp16, .row_warps = 2},
        Config{.row_warps = 4, .modified = true}, Config{.box_rows = 0, .whole_rows = false},
        Config{.box_rows = 0, .whole_rows = false, .paged = true},
        Config{.box_rows = 32, .whole_rows = false, .paged = true, .tree = true},
        Config{.head_dim = 192, .head_dim_v = 64, .row_warps = 2, .stages = 4, .blocks = 1},
        Config{.head_dim = 256, .head_dim_v = 256, .blocks = 1, .modified = true}})
    units.add(decode_unit(config), 90);
  units.add(mla_unit({.element = tile::Element::fp16}), 90);
  for (const bool paged : {false, true}) units.add(mla_unit({.paged = paged, .few = true}), 90);
}

}  // namespace

std::vector<TargetUnit> guard_units() {
  UnitList units;
  for (const int arch : {80, 90}) {
    units.add(pack_units(arch), arch);
    std::vector<PackUnit> options;
    add_fwd_sm80_dropout_units(options, arch);
    add_bwd_sm80_option_units(options, arch);
    add_bwd_sm90_large_dim_units(options, arch);
    add_bwd_sm90_grouped_units(options, arch);
    add_fwd_sm90_option_units(options, arch);
    add_bwd_sm90_option_units(options, arch);
    add_fwd_sm90_listed_units(options, arch);
    add_bwd_sm90_passing_units(options, arch);
    for (const bool two_plane : {false, true}) add_bwd_short_sm90_units(options, arch, two_plane);
    units.add(std::move(options), arch);
  }
  add_drawn(units);
  add_drawn_options(units);
  add_drawn_mma(units);
  add_decoding(units);
  return units.take();
}

}  // namespace tilewise::cuda
