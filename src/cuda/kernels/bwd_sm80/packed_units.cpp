#include "cuda/host/common.h"
#include "cuda/kernels/bwd_sm80/bias.h"
#include "cuda/kernels/bwd_sm80/row.h"
#include "cuda/kernels/bwd_sm80/tiles.h"

namespace tilewise::cuda {

using namespace bwd_tiles;

namespace {

/// Adds a kernel unless an architecture cannot hold it.
void add_unit(std::vector<PackUnit>& units, int arch, KernelUnit made, const KernelRow& row) {
  if (made.shared_bytes > 1024 * host::shared_kib(arch)) return;
  // NOTE: the spills (README.md) are of loop constants, reloaded once a step. hide_rows adds to
  // them with dropout and, on Blackwell, in two planes: right gradients come before their speed.
  units.push_back({.unit = std::move(made),
                   .row = row.name,
                   .instruction = "mma.sync",
                   .allowed_spill_bytes = 160});
}
/// Not a small one.
Problem packed_problem(DType dtype, std::int64_t dim) {
  Problem p;
  p.scale = 1.0F;
  p.dtype = dtype;
  p.batch = p.heads_q = p.heads_k = 64;
  p.seq_q = p.seq_k = 1024;
  p.head_dim = p.head_dim_v = dim;
  return p;
}

}  // namespace

void add_bwd_sm80_units(std::vector<PackUnit>& units, int arch) {
  for (const int dim : {64, 128}) {
    const Problem half = packed_problem(DType::bfloat16, dim);
    const Tile& one = one_pass_tiles(half)[0];
    add_unit(units, arch,
             key_unit(make_config(half, one, Launch::all, false, host::shared_kib(arch)),
                      one.min_blocks),
             kFlashBackwardSm80);
    const Problem exact = packed_problem(DType::float32, dim);
    const TilePair& two = two_pass_tiles(exact)[0];
    const auto add = [&](auto make_unit, const Tile& tile, Launch launch) {
      const Config config = make_config(exact, tile, launch, false, host::shared_kib(arch));
      add_unit(units, arch, make_unit(config, tile.min_blocks), kFlashBackwardTwoPassSm80);
    };
    // NOTE: spills 272 bytes on sm_100 since it may walk lists, more than the census allows a
    // packed kernel: there it is compiled at first use. No card of that kind has been lent to
    // measure it.
    if (arch != 100 || dim != 128) add(key_unit, two.keys, Launch::keys);
    add(query_unit, two.queries, Launch::queries);
    add(refine_unit, two.queries, Launch::queries);
  }
}

void add_bwd_sm80_option_units(std::vector<PackUnit>& units, int arch) {
  const auto add_bias = [&](Problem p) {
    p.bias.rank = 4;
    p.bias.strides[3] = 1;
    const Tile& queries = two_pass_tiles(p)[0].queries;
    const Config config = make_config(p, queries, Launch::queries, false, host::shared_kib(arch));
    add_unit(units, arch, bias_unit(config, queries.min_blocks), kFlashBackwardTwoPassSm80);
  };
  for (const int dim : {64, 128}) {
    Problem p = packed_problem(DType::bfloat16, dim);
    add_bias(p);
    p.dropout.p = 0.1;
    const Tile& one = one_pass_tiles(p)[0];
    add_unit(
        units, arch,
        key_unit(make_config(p, one, Launch::all, false, host::shared_kib(arch)), one.min_blocks),
        kFlashBackwardSm80);
  }
  add_bias(packed_problem(DType::float32, 64));
}

}  // namespace tilewise::cuda
