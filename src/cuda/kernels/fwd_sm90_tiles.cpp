#include "cuda/kernels/fwd_sm90_tiles.h"

#include <algorithm>
#include <cmath>

#include "cuda/kernels/sm80.hpp"
#include "cuda/kernels/tile_order.h"
#include "plan/accounting.h"

namespace tilewise::cuda {
namespace {

using fwd_sm90::Config;
using fwd_sm90::Mask;

// warpgroups, block_n, stages, own_o, ping_pong, ping_pong_masked, lazy_rescale, skip_blocks,
// chain_short, full, masked
constexpr Sm90Tile kTiles64[] = {
    {3, 128, 3, true, true, true, true, true, true, {1.1, 1.37}, {0.4, 1.33}}};
constexpr Sm90Tile kTiles96[] = {
    {3, 96, 2, true, true, true, true, true, false, {2.8, 1.35}, {2.8, 1.22}}};
constexpr Sm90Tile kTiles128[] = {
    {3, 80, 2, true, true, false, true, true, false, {2.1, 1.36}, {3.1, 1.21}},
    {2, 128, 2, true, true, true, false, false, false, {2.0, 1.51}, {2.0, 1.37}}};
constexpr Sm90Tile kTiles192[] = {
    {2, 112, 2, false, true, true, true, true, false, {4.9, 1.75}, {4.9, 1.56}}};
constexpr Sm90Tile kTiles192Values128[] = {
    {2, 112, 2, true, true, true, true, true, false, {4.0, 1.46}, {4.0, 1.32}}};
constexpr Sm90Tile kTiles256[] = {
    {2, 80, 2, false, true, true, true, true, false, {5.7, 1.66}, {5.7, 1.49}}};

/// Up to this many keys, memory is a large part of the time: sections of heads are small, and the
/// start and end of a tile count.
constexpr std::int64_t kShortKeys = 2048;
/// Parts that keys are split into at most.
constexpr int kMostSplits = 32;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// Blocks of keys that a tile takes on average, those that a diagonal cuts counted whole.
double blocks_of_tile(const Problem& p, const Sm90Tile& tile) {
  const double rows = static_cast<double>(p.batch * p.heads_q * p.seq_q);
  const double keys = visible_pairs(p) / std::max(1.0, rows);
  const double cut = p.has_positional_mask() ? 0.5 * (tile.block_n + tile.block_m()) : 0.0;
  const double all = std::ceil(static_cast<double>(p.seq_k) / tile.block_n);
  return std::clamp((keys + cut) / tile.block_n, 1.0, all);
}

double predict(const Problem& p, const Sm90Tile& tile, int splits, const Hardware& machine) {
  const double sms = std::max(1, machine.multiprocessors);
  const double row_blocks = std::ceil(static_cast<double>(p.seq_q) / tile.block_m());
  const double tiles = static_cast<double>(p.batch * p.heads_q) * row_blocks;
  const double blocks = blocks_of_tile(p, tile);
  const double parts = std::min<double>(splits, std::ceil(blocks));
  // Masked blocks run faster: the card draws less power and clocks higher.
  const double part_us = p.has_positional_mask()
                             ? tile.masked.fixed_us + tile.masked.block_us * blocks / parts
                             : tile.full.fixed_us + tile.full.block_us * std::ceil(blocks / parts);
  const double jobs = tiles * parts;
  // Whole waves where every tile costs the same, half a tile of tail where they are handed out.
  const double waves =
      p.has_positional_mask() ? std::max(1.0, jobs / sms + 0.4) : std::ceil(jobs / sms);
  double ms = sm80::kKernelMs + 1e-3 * waves * part_us;
  if (splits > 1) {
    const double partial = static_cast<double>(p.batch * p.heads_q * p.seq_q) * splits *
                           sm80::padded(p.head_dim_v) * 4.0;
    ms += sm80::kKernelMs + 1e-6 * 2.0 * partial / machine.bandwidth_gbps;
  }
  return ms;
}

}  // namespace

std::span<const Sm90Tile> sm90_tiles(const Problem& p) {
  const int dim = sm80::padded(p.head_dim), dim_v = sm80::padded(p.head_dim_v);
  if (dim == 192 && dim_v <= 128) return kTiles192Values128;
  const int larger = std::max(dim, dim_v);
  if (larger <= 64) return kTiles64;
  if (larger <= 96) return kTiles96;
  if (larger <= 128) return kTiles128;
  if (larger <= 192) return kTiles192;
  return kTiles256;
}

Sm90Mask sm90_mask(const Problem& p) {
  constexpr std::int64_t kFar = tile::Positions::kFar;
  const std::int64_t shift = p.seq_k - p.seq_q;
  std::int64_t high = shift + p.right + 1;
  if (p.causal == Causal::top_left) high = std::min<std::int64_t>(high, 1);
  const std::int64_t low = shift - p.left;
  Sm90Mask mask;
  mask.high = static_cast<int>(std::clamp(high, -kFar, kFar));
  mask.low = static_cast<int>(std::clamp(low, -kFar, kFar));
  // The first row has the nearest right edge, the last row the nearest left one.
  if (low + p.seq_q - 1 > 0) {
    mask.mask = Mask::both;
  } else if (high < p.seq_k) {
    mask.mask = Mask::right;
  }
  return mask;
}

Config sm90_config(const Problem& p, const Sm90Tile& tile, bool split) {
  Config config;
  config.element = p.dtype == DType::bfloat16 ? tile::Element::bf16 : tile::Element::fp16;
  config.head_dim = sm80::padded(p.head_dim);
  config.head_dim_v = sm80::padded(p.head_dim_v);
  config.warpgroups = tile.warpgroups;
  config.block_n = tile.block_n;
  config.stages = tile.stages;
  config.own_o = tile.own_o;
  config.lazy_rescale = tile.lazy_rescale;
  config.mask = sm90_mask(p).mask;
  config.skip_blocks = tile.skip_blocks;
  config.modified = sm80::is_modified(p, sm80::form(p));
  config.split = split;
  const bool masked = config.mask != Mask::none;
  config.ping_pong = masked ? tile.ping_pong_masked : tile.ping_pong;
  // A counter pays where tiles differ, and at dim 64, whose tiles are short. It counts to 2^24.
  const std::int64_t q_blocks = p.seq_q / tile.block_m() + 1;
  const double tiles = static_cast<double>(p.batch * p.heads_q * (split ? kMostSplits : 1)) *
                       static_cast<double>(q_blocks);
  config.dynamic = (masked || tile.chain_short) && tiles < 0x1p23;
  config.chain_tiles =
      tile.chain_short && !split && config.mask != Mask::both && (!masked || p.seq_k <= kShortKeys);
  config.q_buffers = config.chain_tiles ? 2 : 1;
  return config;
}

fwd_sm90::SectionOrder sm90_order(const Problem& p, const Config& config, int splits) {
  OrderProblem order;
  const std::int64_t block_m = std::int64_t{64} * config.warpgroups;
  order.blocks = (p.seq_q + block_m - 1) / block_m;
  order.heads = p.batch * p.heads_q * splits;
  order.heads_per_kv = p.group() * splits;
  order.kv_bytes = p.seq_k * (p.head_dim + p.head_dim_v) * 2;
  if (config.mask != Mask::none) {
    const bool is_short = p.seq_k <= kShortKeys;
    order.section_bytes = (is_short ? 4 : 16) * kMiB;
    order.last_bytes = (is_short ? 16 : 32) * kMiB;
  }
  return section_order(order);
}

int sm90_blocks_per_split(const Problem& p, int block_n, int splits) {
  const std::int64_t blocks = (p.seq_k + block_n - 1) / block_n;
  return static_cast<int>((blocks + splits - 1) / splits);
}

Sm90Choice sm90_choose(const Problem& p, const Hardware& machine) {
  Sm90Choice best;
  for (const Sm90Tile& tile : sm90_tiles(p)) {
    for (const int wanted : {1, 2, 3, 4, 6, 8, 12, 16, 24, kMostSplits}) {
      // Fewer than two blocks a part do not pay for the merge.
      if (wanted > 1 && p.seq_k < std::int64_t{2} * tile.block_n * wanted) break;
      const std::int64_t blocks = (p.seq_k + tile.block_n - 1) / tile.block_n;
      const int per_part = sm90_blocks_per_split(p, tile.block_n, wanted);
      const int splits = wanted == 1 ? 1 : static_cast<int>((blocks + per_part - 1) / per_part);
      const double ms = predict(p, tile, splits, machine);
      if (best.tile == nullptr || ms < best.ms) best = {&tile, splits, ms};
    }
  }
  return best;
}

}  // namespace tilewise::cuda
