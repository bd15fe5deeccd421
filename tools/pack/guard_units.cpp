#include "guard_units.h"

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "cuda/kernels/bwd_sm80/row.h"
#include "cuda/kernels/bwd_sm90/dq/launch.h"
#include "cuda/kernels/bwd_sm90/row.h"
#include "cuda/kernels/bwd_sm90/tiles.h"
#include "cuda/kernels/bwd_sm90/unit.h"
#include "cuda/kernels/fwd_sm80/row.h"
#include "cuda/kernels/fwd_sm90/tiles.h"
#include "cuda/kernels/fwd_sm90/unit.h"

namespace tilewise::cuda {
namespace {

constexpr int kDrawnUnits = 60;

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

/// Draws problems of sm_90. std::mt19937_64 gives the same numbers everywhere, the standard's
/// distributions do not.
class ProblemDraw {
 public:
  Problem problem() {
    Problem p;
    p.dtype = pick(std::array{DType::bfloat16, DType::float16});
    p.device = {DeviceType::cuda, 0};
    p.head_dim = p.head_dim_v = pick(std::array<std::int64_t, 5>{64, 96, 128, 192, 256});
    p.batch = 4;
    p.heads_q = 8;
    p.heads_k = p.heads_q / pick(std::array<std::int64_t, 2>{1, 4});
    p.seq_q = p.total_q = pick(std::array<std::int64_t, 5>{1, 100, 1024, 4096, 16384});
    p.seq_k = p.total_k = std::max<std::int64_t>(p.seq_q, 1024);
    p.scale = 0.1F;
    p.deterministic = below(2) == 1;
    set_mask(p);
    set_scores(p);
    set_lengths(p);
    return p;
  }

  std::size_t below(std::size_t count) { return numbers_() % count; }

 private:
  template <class T, std::size_t kCount>
  T pick(const std::array<T, kCount>& choices) {
    return choices[below(kCount)];
  }
  void set_mask(Problem& p) {
    const std::size_t kind = below(3);
    if (kind > 0) p.causal = Causal::bottom_right, p.right = 0;
    if (kind == 2) p.left = 1023;
  }
  void set_scores(Problem& p) {
    if (below(2) == 1) p.softcap = 30.0;
    if (below(2) == 1) {
      p.alibi_slopes = Tensor::contiguous(slopes_.data(), DType::float32, {8}, p.device);
    }
  }
  void set_lengths(Problem& p) {
    const std::size_t kind = below(3);
    if (kind == 1) {
      p.key_lengths = Tensor::contiguous(offsets_.data(), DType::int32, {4}, p.device);
    }
    if (kind == 2) {
      p.packed = true;
      p.cu_seqlens_q = p.cu_seqlens_k =
          Tensor::contiguous(offsets_.data(), DType::int32, {5}, p.device);
      p.total_q = p.batch * p.seq_q;
      p.total_k = p.batch * p.seq_k;
    }
  }

  std::mt19937_64 numbers_{16};
  // Configs ask whether such a tensor is given, never for what it holds.
  std::array<float, 8> slopes_{};
  std::array<int, 5> offsets_{};
};

void add_drawn(UnitList& units) {
  ProblemDraw draw;
  const std::size_t wanted = units.size() + kDrawnUnits;
  while (units.size() < wanted) {
    Problem p = draw.problem();
    const auto tiles = sm90_tiles(p);
    const Sm90Tile& tile = tiles[draw.below(tiles.size())];
    units.add(fwd_sm90_unit(sm90_config(p, tile, draw.below(2) == 1)), 90);
    p.pass = Pass::backward;
    const bwd_sm90::Config config = bwd_sm90_config(p);
    units.add(bwd_sm90_unit(config), 90);
    if (config.large_dim()) units.add(bwd_dq_sm90_unit(bwd_dq_sm90::config_beside(config)), 90);
  }
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
    units.add(std::move(options), arch);
  }
  add_drawn(units);
  return units.take();
}

}  // namespace tilewise::cuda
