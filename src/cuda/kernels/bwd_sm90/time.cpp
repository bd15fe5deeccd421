#include <algorithm>
#include <cmath>

#include "cuda/host/common.h"
#include "cuda/kernels/bwd_sm90/tiles.h"
#include "cuda/kernels/tile_lists/kinds.h"
#include "plan/accounting.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using bwd_sm90::Config;

/// Head dims above 128: tiles of 64 keys and, where their blocks end, those of 128 queries of
/// bwd_dq_sm90. Fitted to 16 cells on an H200, off by at most 2 % (bwd_sm90/README.md).
double large_dim_ms(const Problem& p, const Config& config, const Hardware& machine) {
  const double sms = std::max(1, machine.multiprocessors);
  const bool is_192 = std::max(config.head_dim, config.head_dim_v) <= 192;
  const double fixed_us = is_192 ? 4.1 : 5.3;  // of a tile: its start and end, rows to prepare
  const double step_us = (is_192 ? 1.05 : 1.37) * (config.logits.softcap ? 1.3 : 1.0);
  // A tile of queries takes 1.3 times the start and end, a step of 64 keys 1.4 times one of 64
  // queries.
  constexpr double kQueriesFixed = 1.3, kQueriesStep = 1.4;
  // Blocks that the mask cuts count whole.
  const double cut = p.has_positional_mask() ? 0.4 : 0.0;
  const double all_queries = static_cast<double>(p.seq_q * p.group());
  const double all_keys = static_cast<double>(p.seq_k);
  // About half of the last blocks of packed sequences are none.
  const std::int64_t none = p.packed ? p.batch / 2 : 0;
  const std::int64_t entries = p.stored_batch();
  const double key_tiles =
      static_cast<double>(entries * p.heads_k * (bwd_sm90_key_blocks(p, config) - none));
  const double query_tiles =
      static_cast<double>(entries * p.heads_q * (bwd_sm90_chunks(p, config) - none));
  const double queries =
      std::min(visible_pairs(p) / (key_tiles * 64) + cut * 128.0 * static_cast<double>(p.group()),
               all_queries);
  const double keys = std::min(visible_pairs(p) / (query_tiles * 128) + cut * 192.0, all_keys);
  const auto key_us = [&](double steps) { return fixed_us + step_us * steps / 64.0; };
  const auto query_us = [&](double steps) {
    return kQueriesFixed * fixed_us + kQueriesStep * step_us * steps / 64.0;
  };
  // Few tiles: the longest bounds them.
  const double longest = p.has_positional_mask() ? 2.0 : 1.0;
  const double first_us =
      std::max(key_tiles / sms * key_us(queries), key_us(std::min(longest * queries, all_queries)));
  const double second_us = std::max((query_tiles / sms + 0.3) * query_us(keys),
                                    query_us(std::min(longest * keys, all_keys)));
  return 2.0 * host::kKernelMs + 1e-3 * (first_us + second_us);
}

/// How much longer a step of a list takes. At dim 64 it is of 64 queries, as the list's blocks are.
/// A consumer that passes over blocks does one product after the other, and the fewer it does the
/// more it waits for the other one (an H200, five densities).
double listed_step_factor(const Problem& p, const Config& config) {
  if (!p.block_list.defined()) return 1.0;
  const bool narrow = std::max(config.head_dim, config.head_dim_v) <= 64;
  const double short_steps = narrow && config.shape.block_m < 128 ? 1.35 : 1.0;
  if (!config.passes) return short_steps;
  return short_steps * ((narrow ? 1.39 : 1.5) - 0.37 * listed_density(p));
}

}  // namespace

double bwd_sm90_ms(const Problem& p, const Config& config, const Hardware& machine) {
  if (config.large_dim()) return large_dim_ms(p, config, machine);
  const double sms = std::max(1, machine.multiprocessors);
  const int parts = config.sums.split ? bwd_sm90_parts(p, config) : 1;
  const int sharers = config.sums.split ? bwd_sm90_sharers(p, config) : 1;
  // About half of the last blocks of packed sequences are none.
  const double none = p.packed ? 0.5 * static_cast<double>(p.batch) : 0.0;
  const double stored = static_cast<double>(p.stored_batch());
  const double tiles = static_cast<double>(bwd_sm90_tiles(p, config) * parts * sharers) -
                       none * static_cast<double>(p.heads_k * sharers);
  const double chunks = stored * static_cast<double>(p.heads_q) *
                        (static_cast<double>(bwd_sm90_chunks(p, config)) - none);
  const double group = static_cast<double>(p.group()) / sharers;
  const double all_queries =
      static_cast<double>(round_up(p.seq_q, config.shape.block_m)) * group / parts;
  const double cut =
      p.has_positional_mask() ? 0.4 * (config.shape.block_m + config.shape.block_n) : 0.0;
  // Where packed sequences have many lengths the last block of queries is half empty.
  const bool uneven = p.packed && p.total_q < p.batch * p.seq_q;
  const double part_full = uneven ? 0.5 * config.shape.block_m : 0.0;
  const bool listed = p.block_list.defined();
  const double seen =
      visible_pairs(p) / (tiles * config.shape.block_n) *
      taken_over_listed(p, config.shape.block_m, config.shape.block_n / (config.passes ? 2 : 1));
  // Without a mask a tile takes whole blocks of queries, however many keys it has.
  const bool whole = !p.has_positional_mask() && !p.packed && !listed;
  const double queries =
      whole ? all_queries : std::min(seen + (cut + part_full) * group, all_queries);
  const int dim = std::max(config.head_dim, config.head_dim_v);
  // A tile has its start and end, and 128 queries. A chunk has preparation and conversion.
  const bool narrow = config.shape.block_m == 128;
  const double fixed_us = (narrow ? 2.0 : 4.0) + (uneven ? 1.5 : 0.0);
  // What makes rows of tiles of a list, and chunks of dim 64 beside one (an H200, 33 cells).
  constexpr double kManyRows = 0x1p18, kListsUs = 40.0;
  const double rows = static_cast<double>(p.query_rows());
  const double lists_us = listed ? kListsUs * std::min(1.0, rows / kManyRows) : 0.0;
  // With narrow sums less: 64 x 20 heads of 130 rows, dim 80, causal took 0.240 ms.
  const bool few_columns = config.sums.narrow && !config.sums.split;
  const double chunk_us = narrow                ? 3.0 + 3.0 * config.shape.chunk_rows / 128.0
                          : listed && dim <= 64 ? 4.0
                          : few_columns         ? (config.shape.chunk_rows <= 192 ? 5.5 : 10.0)
                                                : 8.0 * config.shape.chunk_rows / 128.0;
  // P and dS in two planes: the whole takes 1.41 to 1.56 times as long (one head of 256 to 1024
  // rows on an H200), 96 heads of 128 rows no longer.
  const double step_us = (dim <= 64   ? 2.15
                          : dim <= 96 ? 3.2
                                      : 3.8) *
                             (config.logits.softcap ? 1.3 : 1.0) * (config.two_plane ? 2.0 : 1.0) *
                             (config.options.mask ? 1.15 : 1.0) * listed_step_factor(p, config) *
                             (config.options.bias() ? (dim <= 64 ? 1.5 : 1.3) : 1.0) +
                         (config.sums.bias ? (dim <= 64 ? 2.6 : 3.9) : 0.0) +
                         (config.options.dropout ? 2.3 : 0.0);  // as in the forward, not measured
  const double tile_us = fixed_us + step_us * queries / 128.0;
  // Tiles of one size come in whole waves; others, longest first, leave some of a tile as tail, and
  // the longest bounds them all.
  const double waves = tiles / sms;
  double tiles_us = std::ceil(waves) * tile_us;
  if (p.has_positional_mask()) {
    const double longest = std::min(all_queries, queries * 2.0);
    tiles_us = std::max((waves + 0.4) * tile_us, fixed_us + step_us * longest / 128.0);
  }
  const double chunks_us = std::max(1.0, chunks / sms) * chunk_us;
  // Few jobs: one kind waits for the last of the one before. An estimate, not measured.
  const double chain_us = parts > 1 ? 10.0 : 0.0;
  return 2.0 * host::kKernelMs + 1e-3 * (tiles_us + chunks_us + chain_us + lists_us);
}

}  // namespace tilewise::cuda
