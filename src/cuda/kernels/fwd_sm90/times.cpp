#include "cuda/kernels/fwd_sm90/times.h"

#include <algorithm>
#include <cmath>

#include "cuda/host/common.h"
#include "cuda/host/constants.h"
#include "cuda/host/cut_blocks.h"
#include "cuda/host/expressions.h"
#include "cuda/host/options.h"
#include "cuda/host/served.h"
#include "cuda/host/sm90_mask.h"
#include "cuda/kernels/rows/combine.h"
#include "plan/accounting.h"
#include "problem/blocks.h"

namespace tilewise::cuda::fwd_sm90_times {
namespace {

/// Tiles of which the average takes this share of the longest one's time are as good as even.
constexpr double kEven = 0.85;

/// Tiles of all heads that have queries. Of packed sequences about half of the last ones are none,
/// and those of a list beyond a sequence's end are passed over.
double full_tiles(const Problem& p, const FwdSm90Tile& tile, const QueryGrid& g) {
  if (!p.packed) return static_cast<double>(g.heads * g.blocks);
  const std::int64_t heads = fwd_sm90_pack_shift(p, tile) > 0 ? p.heads_k : p.heads_q;
  const auto blocks = static_cast<double>(host::query_blocks(p, g.queries));
  return static_cast<double>(heads) * (blocks - 0.5 * static_cast<double>(p.batch));
}

/// Blocks of keys that a tile takes, those that a diagonal cuts counted whole.
struct TileBlocks {
  double average, longest;
};
/// The same of a head of few tiles, each counted. Rows that fill no tile and blocks that begin
/// where tiles do are a large part there (an H200, 369 rows causal, dim 128: 192 x 80 take 8 blocks
/// and 0.108 ms, 128 x 128 take 6 and 0.096).
TileBlocks counted_blocks(const Problem& p, const FwdSm90Tile& tile, std::int64_t queries) {
  const host::SeenBlocks seen = host::seen_blocks(p, queries, tile.shape.block_n);
  const auto tiles = static_cast<double>(ceil_div(p.seq_q, queries));
  return {std::max(1.0, static_cast<double>(seen.sum) / tiles),
          std::max(1.0, static_cast<double>(seen.most))};
}

TileBlocks blocks_of_tile(const Problem& p, const FwdSm90Tile& tile, std::int64_t queries) {
  constexpr std::int64_t kFewRows = 512;
  const bool counts = p.has_positional_mask() && !p.packed && !p.block_list.defined();
  if (counts && p.seq_q <= kFewRows && queries == tile.block_m())
    return counted_blocks(p, tile, queries);
  const auto rows = static_cast<double>(p.query_rows());
  const double keys = visible_pairs(p) / std::max(1.0, rows);
  const double cut =
      p.has_positional_mask() ? 0.5 * static_cast<double>(tile.shape.block_n + queries) : 0.0;
  const double all = std::ceil(static_cast<double>(p.seq_k) / tile.shape.block_n);
  const auto blocks = [&](double of) {
    return std::clamp((of + cut) / tile.shape.block_n, 1.0, all);
  };
  // Under a mask the last row or, with fewer keys than queries, one before it sees most.
  std::int64_t most = 0;
  const Sequence s{.q_begin = 0, .q_length = p.seq_q, .k_begin = 0, .k_length = p.seq_k};
  for (const std::int64_t i : {p.seq_q / 2, p.seq_q - 1}) {
    const KeyRange seen = p.visible_keys(s, i);
    most = std::max(most, seen.end - seen.begin);
  }
  return {blocks(keys), std::max(blocks(keys), blocks(static_cast<double>(most)))};
}

/// What a block of keys takes where copying its pages takes `copy_us`: the longer of the two, and
/// half of the other. Two stages do not hide all of it (an H200, boxes of 1, 16 and 64 rows that
/// one warp copied).
double paged_us(const Problem& p, const FwdSm90Tile& tile, double block_us) {
  if (!p.paged) return block_us;
  // A warp's box of a panel; a panel's row that threads copy.
  constexpr double kBoxUs = 0.035, kRowUs = 1.8e-3;
  const int boxes = tile.shape.block_n / fwd_sm90_box_rows(p, tile.shape.block_n);
  const auto panels = static_cast<double>(ceil_div(p.head_dim, 64) + ceil_div(p.head_dim_v, 64));
  const bool by_rows = fwd_sm90_page_copies(p, tile.shape.block_n) == fwd_sm90::PageCopies::rows;
  const double copy_us =
      by_rows ? kRowUs * tile.shape.block_n * panels
              : kBoxUs * panels * std::ceil(static_cast<double>(boxes) / fwd_sm90::kProducerWarps);
  return std::max(block_us, copy_us) + 0.5 * std::min(block_us, copy_us);
}

/// What the options slow a block down by, as measured on an H200.
double options_factor(const Problem& p, const FwdSm90Tile& tile, int splits) {
  const double pair_us = tile.shape.warpgroups == 2 ? 1.2e-4 : 1.4e-4;
  const double drop_us = pair_us * tile.block_m() * tile.shape.block_n;
  double factor = drops(p) ? 1.0 + drop_us / tile.full.block_us : 1.0;
  if (p.mask.defined()) factor *= tile.shape.block_n % 128 == 0 ? 1.25 : 1.4;
  if (p.bias.defined()) {
    const bool staged = tile.shape.block_n % 64 == 0 && bias_begins_even(p);
    const bool apart = tile.schedule.boxes_apart;
    const bool boxed = staged && splits == 1 && (apart || tile.shape.warpgroups == 3) &&
                       fwd_sm90_engine_brings_bias(p);
    // By warps, or by memory, one by one.
    factor *= boxed ? (apart ? 1.3 : 1.45) : staged ? 2.0 : 3.0;
  }
  return factor;
}

/// Tiles that share a multiprocessor slow one another down; alone they take so much of the time.
double sharing_factor(const Problem& p, const FwdSm90Tile& tile, double jobs, double sms) {
  constexpr double kAlone = 0.35;
  if (tile.shape.resident == 1 || fwd_sm90_lists_tiles(p, tile)) return 1.0;
  return kAlone + (1.0 - kAlone) * std::min(1.0, jobs / sms);
}

}  // namespace

QueryGrid query_grid(const Problem& p, const FwdSm90Tile& tile) {
  const int shift = fwd_sm90_pack_shift(p, tile);
  const std::int64_t queries = tile.block_m() >> shift;
  const std::int64_t heads = shift > 0 ? p.heads_k : p.heads_q;
  if (p.packed && !fwd_sm90_lists_tiles(p, tile))
    return {queries, host::query_blocks(p, queries), heads};
  return {queries, ceil_div(p.seq_q, queries), p.batch * heads};
}

double predict(const Problem& p, const FwdSm90Tile& tile, int splits, const Hardware& machine) {
  const double sms = std::max(1, machine.multiprocessors) * tile.shape.resident;
  const QueryGrid g = query_grid(p, tile);
  const double tiles = full_tiles(p, tile, g);
  const TileBlocks of_tile = blocks_of_tile(p, tile, g.queries);
  const double blocks = of_tile.average;
  const double parts = std::min<double>(splits, std::ceil(blocks));
  // Masked blocks run faster: the card draws less power and clocks higher.
  const double skew = p.head_dim % 16 != 0 || p.head_dim_v % 16 != 0 ? tile.skewed : 1.0;
  const bool masked = p.has_positional_mask();
  // Under a mask a few queries at the end of many keys see nearly all of them: even tiles. A list's
  // rows differ.
  const bool listed = p.block_list.defined();
  const bool even = !listed && (!masked || (!p.packed && blocks > kEven * of_tile.longest));
  const FwdSm90Time& time = masked ? tile.masked : tile.full;
  const double of_part = blocks / parts;
  const double jobs = tiles * parts;
  const double full_us = time.fixed_us + skew * paged_us(p, tile, time.block_us) *
                                             (even ? std::ceil(of_part - 1e-6) : of_part);
  const double part_us = full_us * sharing_factor(p, tile, jobs, sms);
  // Whole waves where every tile costs the same, half a tile of tail where they are handed out.
  const double waves = even ? std::ceil(jobs / sms) : std::max(1.0, jobs / sms + 0.4);
  double ms = host::kKernelMs + 1e-3 * waves * part_us;
  if (splits > 1) {
    const double partial =
        static_cast<double>(p.query_rows()) * splits * host::padded(p.head_dim_v) * 4.0;
    ms += host::kKernelMs + 1e-6 * 2.0 * partial / machine.bandwidth_gbps;
  }
  return ms * options_factor(p, tile, splits);
}

bool is_ragged_chunk(const Problem& p) {
  return host::is_ragged(p) && !p.packed && !p.block_list.defined() && p.left >= p.seq_k;
}

double ragged_ms(const Problem& p, const FwdSm90Tile& tile, int splits, const Hardware& machine) {
  // A block of keys over one of equal lengths; what the longest part adds of its time; a pass in
  // parts and its merge, beside the bytes that they leave.
  constexpr double kBlock = 1.12, kTail = 0.1, kSplitMs = 17.5e-3;
  const FwdSm90Time& time = p.has_positional_mask() ? tile.masked : tile.full;
  const QueryGrid g = query_grid(p, tile);
  const double places = std::max(1, machine.multiprocessors) * tile.shape.resident;
  const double jobs = static_cast<double>(g.heads * g.blocks) * splits;
  const double block_ms = 1e-3 * kBlock * paged_us(p, tile, time.block_us) / tile.shape.block_n;
  const double average = host::all_keys(p) / static_cast<double>(p.batch) / splits;
  const double longest = 1e-3 * time.fixed_us + block_ms * host::likely_most_keys(p) / splits;
  const double working = jobs / places * (1e-3 * time.fixed_us + block_ms * average);
  const double merge =
      splits > 1 ? kSplitMs + 2e-6 * partial_bytes(p, splits) / machine.bandwidth_gbps : 0.0;
  return (host::kKernelMs + std::max(working + kTail * longest, longest) + merge) *
         options_factor(p, tile, splits);
}

bool reads_for_few(const Problem& p) {
  return p.seq_q <= host::kFewQueries && p.left >= p.seq_k && !p.packed &&
         !p.key_lengths.defined() && !p.block_list.defined() && !p.mask.defined() &&
         !p.bias.defined();
}

double waves_of(const Problem& p, const FwdSm90Tile& tile, int splits, const Hardware& machine) {
  const double places = std::max(1, machine.multiprocessors) * tile.shape.resident;
  return full_tiles(p, tile, query_grid(p, tile)) * splits / places;
}

double reading_factor(double waves) {
  constexpr double kWhole = 0.98, kIdle = 0.4, kIdleOfFirst = 0.4, kMost = 0.15, kHalf = 0.05;
  if (waves > 1.0) return kWhole + kIdle * (std::ceil(waves) / waves - 1.0);
  // Two multiprocessors share a port: up to one tile for both, no tile waits for the other.
  const double idle = kIdleOfFirst * (1.0 / waves - 1.0);
  return kWhole + (waves > 0.5 ? std::min(kMost, idle) : kHalf);
}

namespace {

/// Of a key and its value, in all heads.
double key_bytes(const Problem& p) {
  return static_cast<double>(p.heads_k * (p.head_dim + p.head_dim_v) * dtype_bytes(p.dtype));
}
/// A key of a tile of 64 rows that waits for nothing but the one before it.
double key_ms(const Problem& p) {
  constexpr double kKeyMs = 5.7e-6, kColumnMs = 2.03e-8;
  return kKeyMs + kColumnMs * 0.5 * static_cast<double>(p.head_dim + p.head_dim_v);
}

}  // namespace

Reading reading(const Problem& p, const FwdSm90Tile& tile, int splits, const Hardware& machine) {
  // A wave's start and end; the merge beside its bytes, and each part of it; until the memory is
  // busy, and when it no longer is.
  constexpr double kWaveMs = 1.5e-3, kMergeMs = 1.5e-3, kPartMs = 1e-4, kMergeGbps = 2000.0;
  constexpr double kRamp = 0.1, kRampMs = 4e-3;
  const double waves = waves_of(p, tile, splits, machine);
  const auto bytes = static_cast<double>((p.k.numel() + p.v.numel()) * dtype_bytes(p.dtype));
  const double blocks = std::ceil(static_cast<double>(p.seq_k) / tile.shape.block_n / splits);
  const double memory = 1e-6 * bytes / machine.bandwidth_gbps * reading_factor(waves);
  const double working = key_ms(p) * tile.shape.block_n * blocks * std::ceil(waves);
  const double ramp = std::min(kRamp * memory, kRampMs);
  const double others =
      kWaveMs * waves +
      (splits > 1 ? kMergeMs + kPartMs * splits + 2e-6 * partial_bytes(p, splits) / kMergeGbps
                  : 0.0);
  const double factor = options_factor(p, tile, splits);
  return {factor * std::max(memory, host::kKernelMs + working + others),
          factor * (std::max(memory + ramp, working) + others)};
}

bool serves_few(const Problem& p) {
  if (!p.key_lengths.defined() || p.seq_q > host::kFewQueries || p.left < p.seq_k) return false;
  return !p.packed && !p.block_list.defined() && !p.mask.defined() && !p.bias.defined() &&
         !p.tree.defined() && !p.alibi_slopes.defined() && !drops(p) && !expressions_of(p).any();
}

namespace {

/// Of one length: waves of tiles that end together.
double even_ms(const Problem& p, const FwdSm90Tile& tile, int splits, const Hardware& machine) {
  // The kernel and its start (without what plan/fitted_constants.inc adds), the merge, each part of
  // it, a wave of tiles.
  constexpr double kStartMs = 5.3e-3, kMergeMs = 3.4e-3, kPartMs = 3.5e-4, kWaveMs = 1e-4;
  // Over the rate of a copy; of what a block, and a tile's start and end take with many queries;
  // what the longest part adds of its time.
  constexpr double kRate = 0.94, kBlock = 0.85, kFixed = 1.3, kTail = 0.05;
  const double keys = host::all_keys(p), waves = waves_of(p, tile, splits, machine);
  const double reading =
      1e-6 * keys * key_bytes(p) / machine.bandwidth_gbps * kRate * reading_factor(waves);
  const double block_ms = 1e-3 * kBlock * tile.full.block_us / tile.shape.block_n;
  const double average = keys / static_cast<double>(p.batch) / splits;
  const double working = waves * (1e-3 * kFixed * tile.full.fixed_us + block_ms * average);
  const double longest = block_ms * host::likely_most_keys(p) / splits;
  // Tiles that are as busy as the memory wait for one another.
  const double both = std::sqrt(std::hypot(reading * reading, working * working));
  return kStartMs + std::max(both + kTail * longest, longest) + kWaveMs * waves +
         (splits > 1 ? kMergeMs + kPartMs * splits : 0.0);
}

/// Of lengths that differ: tiles are handed out until none is left. An entry's tiles start
/// together, and some entry's are long when the others have ended. Of lengths whose shares fall
/// like exp(-length / average), the longest of n is log(n) + 0.58 averages (Euler's constant).
double uneven_ms(const Problem& p, const FwdSm90Tile& tile, int splits, const Hardware& machine) {
  // The kernel and its start, the merge and each part of it; over the rate of a copy; a tile's
  // start and end; what is lost while the last ones end.
  constexpr double kStartMs = 5.5e-3, kMergeMs = 1.4e-3, kPartMs = 2e-4;
  constexpr double kRate = 0.973, kTileMs = 1.43e-3, kTail = 0.403, kEuler = 0.58;
  const double keys = host::all_keys(p), waves = waves_of(p, tile, splits, machine);
  const double entries = static_cast<double>(p.batch);
  const double reading = kRate * 1e-6 * keys * key_bytes(p) / machine.bandwidth_gbps;
  const double average = key_ms(p) * keys / entries / splits;
  const double longest = key_ms(p) * host::likely_most_keys(p) / splits;
  const double working = waves * (kTileMs + average);
  const double at_once = std::max(1.0, entries / waves);
  const double tail = kTail * std::min(longest, average * (std::log(at_once) + kEuler));
  const double both = std::sqrt(std::hypot(reading * reading, working * working));
  return kStartMs + std::max(both + tail, longest) +
         (splits > 1 ? kMergeMs + kPartMs * splits : 0.0);
}

}  // namespace

double served_ms(const Problem& p, const FwdSm90Tile& tile, int splits, const Hardware& machine) {
  return host::is_ragged(p) ? uneven_ms(p, tile, splits, machine)
                            : even_ms(p, tile, splits, machine);
}

}  // namespace tilewise::cuda::fwd_sm90_times
