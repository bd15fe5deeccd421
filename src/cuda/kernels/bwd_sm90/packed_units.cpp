/// The units of bwd_sm90 that the pack holds or a test watches. Declared in row.h.
#include "cuda/host/options.h"
#include "cuda/kernels/bwd_sm90/dq/launch.h"
#include "cuda/kernels/bwd_sm90/row.h"
#include "cuda/kernels/bwd_sm90/tiles.h"
#include "cuda/kernels/bwd_sm90/unit.h"

namespace tilewise::cuda {
namespace {

using bwd_sm90::Config;

/// A problem whose kernels are watched.
Problem typical(DType dtype, std::int64_t dim, bool causal, std::int64_t rows = 4096) {
  Problem p;
  p.dtype = dtype;
  p.batch = p.heads_q = p.heads_k = 16;
  p.seq_q = p.seq_k = rows;
  p.head_dim = p.head_dim_v = dim;
  p.scale = 1.0F;
  if (causal) p.causal = Causal::bottom_right, p.right = 0;
  return p;
}
/// NOTE: the producer's 24 registers spill; the loops of those who compute do not.
PackUnit held(KernelUnit unit) {
  return {.unit = std::move(unit),
          .row = kFlashBackwardSm90.name,
          .instruction = "wgmma.mma_async",
          .allowed_spill_bytes = 64};
}

}  // namespace

void add_bwd_sm90_units(std::vector<PackUnit>& units, int arch) {
  if (arch != 90) return;
  for (const std::int64_t dim : {64, 128}) {
    for (const bool causal : {false, true}) {
      for (const DType dtype : {DType::bfloat16, DType::float16}) {
        // At dim 64 longer rows have another stage of Q.
        const std::int64_t rows = dim == 64 ? 2048 : 4096;
        units.push_back(held(bwd_sm90_unit(bwd_sm90_config(typical(dtype, dim, causal, rows)))));
        if (dim > 64 || dtype == DType::float16) continue;
        units.push_back(held(bwd_sm90_unit(bwd_sm90_config(typical(dtype, dim, causal)))));
      }
    }
  }
}

void add_bwd_sm90_grouped_units(std::vector<PackUnit>& units, int arch) {
  if (arch != 90) return;
  for (const std::int64_t dim : {64, 128}) {
    Problem p = typical(DType::bfloat16, dim, true);
    p.heads_k = 4;
    units.push_back(held(bwd_sm90_unit(bwd_sm90_config(p))));
  }
}

void add_bwd_sm90_large_dim_units(std::vector<PackUnit>& units, int arch) {
  if (arch != 90) return;
  for (const std::int64_t dim : {192, 256}) {
    for (const bool causal : {false, true}) {
      const Config config = bwd_sm90_config(typical(DType::bfloat16, dim, causal));
      units.push_back(held(bwd_sm90_unit(config)));
      units.push_back(held(bwd_dq_sm90_unit(bwd_dq_sm90::config_beside(config))));
    }
  }
}

void add_bwd_sm90_option_units(std::vector<PackUnit>& units, int arch) {
  if (arch != 90) return;
  for (const std::int64_t dim : {64, 128}) {
    Problem p = typical(DType::bfloat16, dim, false);
    p.mask.rank = 4;
    Config config = bwd_sm90_config(p);
    config.lists = tile::Lists::none;  // as where tiles are few
    units.push_back(held(optioned_unit(bwd_sm90_unit(config))));
    p.mask = {};
    p.dropout.p = 0.1;
    units.push_back(held(optioned_unit(bwd_sm90_unit(bwd_sm90_config(p)))));
    // At dim 128 a step reads two words back: the bits are made while the most registers are taken.
    units.back().allowed_spill_bytes = 96;
  }
}

void add_bwd_sm90_mask_units(std::vector<PackUnit>& units, int arch) {
  if (arch != 90) return;
  Problem p = typical(DType::bfloat16, 128, false);
  p.mask.rank = 4;
  units.push_back(held(optioned_unit(bwd_sm90_unit(bwd_sm90_config(p)))));
}

void add_bwd_sm90_passing_units(std::vector<PackUnit>& units, int arch) {
  if (arch != 90) return;
  for (const std::int64_t dim : {64, 128}) {
    Problem p = typical(DType::bfloat16, dim, dim == 128);
    p.block_list.row_offsets.rank = 3;
    p.block_list.block_q = p.block_list.block_k = 64;
    units.push_back(held(bwd_sm90_unit(bwd_sm90_passing_config(p))));
  }
}

}  // namespace tilewise::cuda
