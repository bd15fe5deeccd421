#include "cuda/kernels/bwd_sm90_tiles.h"

#include <algorithm>
#include <cmath>

#include "cuda/kernels/fwd_sm90_tiles.h"
#include "cuda/kernels/sm80.hpp"
#include "cuda/kernels/tile_order.h"
#include "plan/accounting.h"
namespace tilewise::cuda {
namespace {

using bwd_sm90::Config;
using bwd_sm90::Mask;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

std::int64_t blocks_of(std::int64_t rows, int block) { return (rows + block - 1) / block; }

}  // namespace

int bwd_sm90_padded(std::int64_t dim) {
  for (const int padded : {64, 96, 128, 192}) {
    if (dim <= padded) return padded;
  }
  return 256;
}

Config bwd_sm90_config(const Problem& p) {
  Config config;
  config.element = p.dtype == DType::bfloat16 ? tile::Element::bf16 : tile::Element::fp16;
  config.head_dim = bwd_sm90_padded(p.head_dim);
  config.head_dim_v = bwd_sm90_padded(p.head_dim_v);
  config.block_m = std::max(config.head_dim, config.head_dim_v) <= 64 ? 128 : 64;
  config.mask = sm90_mask(p).mask;
  config.modified = sm80::is_modified(p, sm80::form(p));
  config.softcap = p.softcap != 0.0;
  config.alibi = p.alibi_slopes.defined();
  config.deterministic = p.deterministic;
  config.fold_lse = !config.modified;
  if (std::max(config.head_dim, config.head_dim_v) > 128) {
    config.block_n = config.chunk_rows = 64;
    return config;
  }
  // What registers allow: bwd_sm90.md.
  const bool narrow = config.block_m == 128;
  config.late_dq = narrow || !config.modified;
  config.v_registers = narrow;
  return config;
}

std::int64_t bwd_sm90_rows(const Problem& p, const Config& config) {
  return blocks_of(p.seq_q, config.chunk_rows) * config.chunk_rows;
}

std::int64_t bwd_sm90_jobs(const Problem& p, const Config& config) {
  return 2 * p.batch * p.heads_q * blocks_of(p.seq_q, config.chunk_rows) +
         p.batch * p.heads_k * blocks_of(p.seq_k, config.block_n);
}

bwd_sm90::SectionOrder bwd_sm90_order(const Problem& p, const Config& config) {
  OrderProblem order;
  order.blocks = blocks_of(p.seq_k, config.block_n);
  order.heads = p.batch * p.heads_k;
  // Q, dO and the float32 sums of dQ.
  order.kv_bytes = p.group() * p.seq_q * (2 * p.head_dim + 2 * p.head_dim_v + 4 * p.head_dim);
  order.section_bytes = 8 * kMiB;
  order.last_bytes = (config.mask == Mask::none ? 8 : 32) * kMiB;
  return section_order(order);
}

int bwd_sm90_sections_apart(const bwd_sm90::SectionOrder& order) {
  const int tiles = std::max(1, order.section_heads * order.blocks);
  return (sm80::kTypicalMultiprocessors + tiles - 1) / tiles;
}

double bwd_sm90_ms(const Problem& p, const Config& config, const Hardware& machine) {
  const double sms = std::max(1, machine.multiprocessors);
  const double tiles =
      static_cast<double>(p.batch * p.heads_k * blocks_of(p.seq_k, config.block_n));
  const double chunks =
      static_cast<double>(p.batch * p.heads_q * blocks_of(p.seq_q, config.chunk_rows));
  const double all_queries = static_cast<double>(p.seq_q * p.group());
  const double cut = p.has_positional_mask() ? 0.5 * (config.block_m + config.block_n) : 0.0;
  const double queries =
      std::min(visible_pairs(p) / (tiles * config.block_n) + cut * static_cast<double>(p.group()),
               all_queries);
  const int dim = std::max(config.head_dim, config.head_dim_v);
  // Of a tile: its start and end, and 128 queries. Of a chunk: preparation and conversion.
  constexpr double kTileUs = 5.0, kChunkUs = 8.0;
  const double step_us = (dim <= 64    ? 2.15
                          : dim <= 96  ? 3.3
                          : dim <= 128 ? 3.95
                          : dim <= 192 ? 4.2
                                       : 5.4) *
                         (config.softcap ? 1.3 : 1.0);
  const double tile_us = kTileUs + step_us * queries / 128.0;
  // Tiles of one size come in whole waves; others, longest first, leave some of a tile as tail, and
  // the longest bounds them all.
  const double waves = tiles / sms;
  double tiles_us = std::ceil(waves) * tile_us;
  if (p.has_positional_mask()) {
    const double longest = std::min(all_queries, queries * 2.0);
    tiles_us = std::max((waves + 0.4) * tile_us, kTileUs + step_us * longest / 128.0);
  }
  const double chunks_us = std::max(1.0, chunks / sms) * kChunkUs;
  return 2.0 * sm80::kKernelMs + 1e-3 * (tiles_us + chunks_us);
}

}  // namespace tilewise::cuda
