#include "cuda/kernels/fwd_sm90/tiles.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cuda/host/common.h"
#include "cuda/host/constants.h"
#include "cuda/host/expressions.h"
#include "cuda/host/options.h"
#include "cuda/host/served.h"
#include "cuda/host/shared_bias.h"
#include "cuda/host/sm90_mask.h"
#include "cuda/host/tile_order.h"
#include "cuda/kernels/fwd_sm90/tile_tables.h"
#include "cuda/kernels/fwd_sm90/times.h"
#include "cuda/kernels/rows/score_strip.h"
#include "cuda/kernels/tile_lists/kinds.h"
#include "expression/affine.h"
#include "plan/accounting.h"
#include "plan/batch_invariance.h"
#include "plan/forms.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using fwd_sm90::Config;
using fwd_sm90::Lengths;
using fwd_sm90::Mask;
using fwd_sm90::Modification;
using fwd_sm90::Schedule;
using namespace fwd_sm90_tables;
using namespace fwd_sm90_times;

/// Up to this many keys, memory is a large part of the time: sections of heads are small, and the
/// start and end of a tile count.
constexpr std::int64_t kShortKeys = 2048;
/// Bytes of shared memory that a block can have.
constexpr int kSharedLimit = 227 * 1024;
/// Parts that keys are split into at most.
constexpr int kMostSplits = 64;
/// Boxes of fewer rows take the copy engine longer than threads take to copy the rows.
constexpr int kLeastBoxRows = 4;
/// Share of a tile's rows that must be gained before heads are packed.
constexpr double kPackGain = 0.9;

/// Whether float32 holds the softcap's series (tile/softcap.cuh): hidden scores are infinite,
/// others may be 0. Above kMost the two series' difference, a part of the logits, would show.
bool has_series(const Problem& p) {
  constexpr double kMost = 1e6;
  const double ratio = p.scale / p.softcap;
  const double last = p.scale * kLog2e * tile::SoftcapSeries::k2 * std::pow(ratio, 4);
  return p.softcap <= kMost && std::isnormal(static_cast<float>(last));
}

Modification modification(const Problem& p) {
  if (p.bias.defined() && (host::is_modified(p) || p.score_function.defined()))
    return Modification::general;  // a bias is added to logits in the log2 domain
  if (!host::is_modified(p))
    return p.score_affine != nullptr ? Modification::alibi : Modification::none;
  // What a score function takes is worked out in the general way.
  if (p.score_function.defined()) return Modification::general;
  // The kernels of one modification divide by the scale.
  const bool softcap = p.softcap > 0.0, alibi = p.alibi_slopes.defined();
  if (!(p.scale > 1e-30F) || (softcap && (alibi || !has_series(p)))) return Modification::general;
  return softcap ? Modification::softcap : Modification::alibi;
}

/// log2 of the query heads that a tile of 128 rows packs, so that its queries are a block of the
/// list: where the heads of a group share the list and few rows stand for none. 0: none.
int listed_pack_shift(const Problem& p) {
  constexpr std::int64_t kRows = 128;
  constexpr double kLeastFilled = 0.75;
  const BlockList& list = p.block_list;
  const std::int64_t group = p.group();
  if (!list.defined() || list.row_offsets.sizes[1] != 1 || group <= 1 || group > 64) return 0;
  if (list.block_q >= kRows || list.block_k < 64) return 0;
  // To head dim 64 tiles of 64 rows are faster.
  if (std::max(p.head_dim, p.head_dim_v) <= 64 && list.block_q >= 64) return 0;
  if (p.alibi_slopes.defined() || p.bias.defined() || drops(p) || expressions_of(p).any()) return 0;
  // Heads of a mask have lists of their own.
  if (p.mask.defined() && p.mask.strides[1] != 0) return 0;
  int shift = 0;
  while (std::int64_t{1} << shift < group) ++shift;
  const std::int64_t places = std::int64_t{1} << shift;
  // The map of packed sequences has no axis left for the heads of a group.
  if (p.packed && places != group) return 0;
  const bool filled = static_cast<double>(group) >= kLeastFilled * static_cast<double>(places);
  return filled && list.block_q >= kRows >> shift ? shift : 0;
}

/// Whether no row sees a key right of the diagonal from which ALiBi's distances count. At dim 128,
/// where one reference for two rows took 0.97 to 0.98 of the time of two (H200); at 64 1.00.
bool leans(const Problem& p, const Config& config) {
  if (config.modification != Modification::alibi || config.lists != tile::Lists::none) return false;
  if (std::max(config.head_dim, config.head_dim_v) != 128 || config.mask == Mask::none)
    return false;
  const expression::Affine* const affine = p.score_affine.get();
  if (affine != nullptr && affine->distance < 0) return true;
  const bool dense = config.lengths == Lengths::dense;
  std::int64_t shift = dense ? p.seq_k - p.seq_q : 0;
  if (affine != nullptr) {
    const expression::Linear& of = affine->shift;
    const bool by_lengths = of.query_length == -1 && of.key_length == 1;
    if (!dense && !by_lengths) return false;
    shift = dense ? of.query_length * p.seq_q + of.key_length * p.seq_k : 0;
    shift += of.constant;
  }
  return sm90_mask(p).high <= shift + 1;
}

bool is_short_window(const Problem& p) {
  const std::int64_t width = std::min(p.left, p.seq_k) + std::min(p.right, p.seq_k);
  return sm90_mask(p).mask == Mask::both && width <= kShortKeys;
}

/// Whether tiles of 64 queries, three to a multiprocessor, are priced too. Only plain problems of
/// short heads without a mask were timed. At head dim 64 and 128 to 512 rows they took 0.84 to 0.99
/// of the time of 192 x 128, 12 heads as long as 64 x 128 (an H200).
bool has_short_heads(const Problem& p) {
  constexpr std::int64_t kLeastRows = 128, kMostRows = 1024;
  constexpr std::int64_t kLeastTiles = 48;
  constexpr std::int64_t kMostTiles = 6144;
  if (p.has_positional_mask() || p.group() > 1 || sm90_lengths(p) != Lengths::dense) return false;
  if (p.paged || modification(p) != Modification::none) return false;
  if (expressions_of(p).any() || options_of(p).any()) return false;
  const std::int64_t tiles = p.batch * p.heads_q * ceil_div(p.seq_q, std::int64_t{64});
  return p.seq_q >= kLeastRows && std::max(p.seq_q, p.seq_k) <= kMostRows && tiles >= kLeastTiles &&
         tiles <= kMostTiles;
}

/// Those of a problem with a list or a mapped mask function.
std::span<const FwdSm90Tile> list_tiles(const Problem& p, int larger) {
  const BlockList& list = p.block_list;
  const bool half = list.defined() && list.block_k < 128;
  const bool whole =
      !list.defined() || listed_pack_shift(p) > 0 || (list.block_q >= 128 && list.block_k >= 64);
  if (larger > 128) return std::span<const FwdSm90Tile>(kLists256).subspan(whole ? 0 : 1, 1);
  const bool narrow = larger <= 64;
  if (whole)
    return std::span<const FwdSm90Tile>(narrow ? kLists64 : kLists128).subspan(half ? 1 : 0, 1);
  const bool plain =
      modification(p) == Modification::none && !expressions_of(p).any() && !options_of(p).any();
  if (plain && list.block_q >= 64 && list.block_k >= 64)
    return {narrow ? &kListsAlone64 : &kListsAlone128, 1};
  const std::span<const FwdSm90Tile> apart = narrow ? kListsApart64 : kListsApart128;
  return plain ? apart : apart.subspan(1);
}

/// Whether a head's queries, packed with those of its group, are rows of one tile of 64.
bool fills_one_warpgroup(const Problem& p) {
  for (const FwdSm90Tile& tile : fwd_sm90_tiles(p)) {
    if (tile.shape.warpgroups == 1) return 64 >> fwd_sm90_pack_shift(p, tile) >= p.seq_q;
  }
  return false;
}

}  // namespace

std::span<const FwdSm90Tile> fwd_sm90_tiles(const Problem& p) {
  const int dim = host::padded(p.head_dim), dim_v = host::padded(p.head_dim_v);
  const int larger = std::max(dim, dim_v);
  if (has_tile_lists(p)) return list_tiles(p, larger);
  std::span<const FwdSm90Tile> tiles = kTiles256;
  if (dim == 192 && dim_v <= 128) {
    tiles = kTiles192Values128;
  } else if (larger <= 64) {
    tiles = kTiles64;
    if (drops(p)) tiles = kDrops64;
    if (has_short_heads(p)) tiles = kFew64;
  } else if (larger <= 96) {
    tiles = kTiles96;
  } else if (larger <= 128) {
    const bool alone = fwd_sm90_engine_brings_bias(p) && !p.mask.defined() && !drops(p);
    tiles = alone ? std::span<const FwdSm90Tile>(kBiased128) : kTiles128;
  } else if (larger <= 192) {
    tiles = kTiles192;
  }
  return tiles;
}

std::span<const FwdSm90Tile> fwd_sm90_masked_tiles(const Problem& p) {
  if (!maps_bool_mask(p)) return {};
  const int larger = std::max(host::padded(p.head_dim), host::padded(p.head_dim_v));
  if (larger <= 64) return kMasked64;
  return larger <= 128 ? std::span<const FwdSm90Tile>(kMasked128) : kMasked256;
}

int fwd_sm90_pack_shift(const Problem& p, const FwdSm90Tile& tile) {
  if (tile.maps) return 0;
  if (p.block_list.defined()) return listed_pack_shift(p);
  const std::int64_t group = p.group();
  const bool apart =
      p.alibi_slopes.defined() || p.bias.defined() || drops(p) || expressions_of(p).any();
  if (group <= 1 || group > 64 || apart) return 0;
  int shift = 0;
  while (std::int64_t{1} << shift < group) ++shift;
  // The map of packed sequences has no axis left for the heads of a group.
  if (p.packed && std::int64_t{1} << shift != group) return 0;
  const auto filled = [&](std::int64_t heads, std::int64_t queries) {
    const std::int64_t blocks = ceil_div(p.seq_q, queries);
    return static_cast<double>(p.seq_q * heads) / static_cast<double>(blocks * tile.block_m());
  };
  const double packed = filled(group, tile.block_m() >> shift);
  return filled(1, tile.block_m()) < kPackGain * packed ? shift : 0;
}

namespace {

/// Whether it brings them for a config. A list tells late which tile of keys is next.
bool boxes_bias(const Problem& p, const Config& config) {
  if (!fwd_sm90_engine_brings_bias(p) || config.split || config.lists != tile::Lists::none)
    return false;
  return (config.shape.warpgroups == 3 || config.schedule.boxes_apart) &&
         config.shape.block_n % 64 == 0;
}

/// Room for the elements of a bias: a stage of keys and values less, else they are read from memory
/// one by one. So they are too where a warp cannot share a row's copies.
void make_room(Config& config) {
  if (!config.options.bias() && !config.options.dropout) return;
  config.options.pairs.staged &= config.shape.block_n % 64 == 0;
  const auto fits = [&] { return fwd_sm90::SharedPlan(config).bytes <= kSharedLimit; };
  if (!fits() && config.schedule.chain_tiles)
    config.schedule.chain_tiles = false, config.shape.q_buffers = 1;
  if (!fits() && config.shape.bias_stages > 0) config.shape.own_o = false;
  while (!fits() && config.shape.value_stages > 2)
    --config.shape.stages, --config.shape.value_stages;
  if (!fits() && config.shape.bias_stages > 0) config.shape.bias_stages = 1;
  if (!fits()) config.options.pairs.staged = false, config.shape.bias_stages = 0;
}

}  // namespace

bool fwd_sm90_engine_brings_bias(const Problem& p) {
  if (!p.bias.defined() || dtype_bytes(p.bias.dtype) != 2) return false;
  if (p.bias.strides[2] == 0 || p.bias.strides[3] != 1) return false;
  return sm90_lengths(p) == Lengths::dense && !p.paged && bias_map_refusal(p.bias).empty();
}

bool fwd_sm90_lists_tiles(const Problem& p, const FwdSm90Tile& tile) {
  return tile.maps || has_tile_lists(p);
}

int fwd_sm90_box_rows(const Problem& p, int block_n) {
  return static_cast<int>(std::gcd(p.page_size, std::int64_t{block_n}));
}

fwd_sm90::PageCopies fwd_sm90_page_copies(const Problem& p, int block_n) {
  if (!p.paged) return fwd_sm90::PageCopies::none;
  return fwd_sm90_box_rows(p, block_n) < kLeastBoxRows ? fwd_sm90::PageCopies::rows
                                                       : fwd_sm90::PageCopies::boxes;
}

Config fwd_sm90_config(const Problem& p, const FwdSm90Tile& tile, bool split) {
  Config config;
  config.element = p.dtype == DType::bfloat16 ? tile::Element::bf16 : tile::Element::fp16;
  config.head_dim = host::padded(p.head_dim);
  config.head_dim_v = host::padded(p.head_dim_v);
  config.shape = tile.shape;
  config.mask = sm90_mask(p).mask;
  config.lists = tile.maps ? tile::Lists::whole
                           : tile_lists_kind(p, tile.block_m() >> fwd_sm90_pack_shift(p, tile),
                                             tile.shape.block_n);
  config.modification = modification(p);
  config.expressions = expressions_of(p);
  config.expressions.strip = config.modification != Modification::alibi && strips_score(p);
  config.options = options_of(p);
  config.lengths = sm90_lengths(p);
  config.pages = fwd_sm90_page_copies(p, tile.shape.block_n);
  config.pack_heads = fwd_sm90_pack_shift(p, tile) > 0;
  config.split = split;
  if (leans(p, config)) config.modification = Modification::leaning;
  const bool masked = config.mask != Mask::none;
  const Schedule& good = tile.schedule;
  Schedule& schedule = config.schedule;
  schedule.skip_blocks = good.skip_blocks;
  schedule.lazy_rescale = good.lazy_rescale;
  schedule.ping_pong = good.ping_pong && (!masked || tile.masked_turns);
  // A counter pays where tiles differ, and at dim 64, whose tiles are short. It counts to 2^24.
  const QueryGrid g = query_grid(p, tile);
  const bool dense = config.lengths == Lengths::dense;
  const double tiles = static_cast<double>(g.heads * g.blocks) * (split ? kMostSplits : 1);
  const bool listed = config.lists != tile::Lists::none;
  schedule.dynamic = (masked || good.dynamic || !dense || listed) && tiles < 0x1p23;
  schedule.chain_tiles = good.chain_tiles && !split && dense && !config.pack_heads &&
                         config.mask != Mask::both && (!masked || p.seq_k <= kShortKeys);
  const bool plain = dense && !config.pack_heads && !split;
  const bool unmodified =
      config.modification == Modification::none && !config.expressions.any() && !p.bias.defined();
  // Functions of masked tiles spill then.
  const bool adds = config.modification == Modification::alibi || config.leans() ||
                    (config.modification == Modification::none && config.expressions.mask == 0 &&
                     (config.expressions.score == 0 || !masked));
  schedule.values_first =
      good.values_first && plain && (unmodified || (adds && !config.options.any()));
  schedule.halve_cut = masked && good.halve_cut && plain && !config.options.mask &&
                       !config.options.tree && !config.options.dropout &&
                       (unmodified || (config.modification == Modification::softcap &&
                                       config.mask == Mask::right && !config.expressions.any()));
  const bool falls = p.score_affine == nullptr || p.score_affine->distance >= 0;
  const bool slopes = p.alibi_slopes.defined() || (p.score_function.defined() && falls);
  schedule.from_diagonal = slopes && !masked && !split && !config.pack_heads && !listed &&
                           !config.paged() && !config.options.mask;
  // The short tiles of a window wait for Q as often as for keys.
  const bool short_window = is_short_window(p) && plain && !listed;
  schedule.q_by_need = good.q_by_need && short_window;
  // Timed with tiles of 128 x 128; with 192 x 80 it did not help.
  schedule.bits_between = drops(p) && !listed && schedule.ping_pong &&
                          config.shape.warpgroups == 2 && config.shape.block_n == 128;
  // A second buffer of Q where the tile has room for one.
  if (!schedule.chain_tiles && !listed && !(short_window && unmodified)) config.shape.q_buffers = 1;
  schedule.boxes_apart = good.boxes_apart;
  config.shape.bias_stages = boxes_bias(p, config) ? 2 : 0;
  make_room(config);
  schedule.boxes_apart &= config.shape.bias_stages > 0;
  return config;
}

Config fwd_sm90_documents_config(const Problem& p, const FwdSm90Tile& tile) {
  Config config = fwd_sm90_config(p, tile, false);
  config.documents = true;
  return config;
}

/// Cut tiles of a row whose pairs are kept as bits; those of others are asked for one by one.
constexpr int kMostCut = 32;

WantedLists fwd_sm90_wanted_lists(const Config& config, int pack_shift) {
  const int rows = config.lists == tile::Lists::parts ? config.shape.warpgroups : 1;
  return {.tile_q = 64 * config.shape.warpgroups / rows >> pack_shift,
          .tile_k = config.shape.block_n,
          .kind = config.lists,
          .packs_heads = config.pack_heads,
          .ordered = true,
          .rows_of_tile = rows,
          .shows_cut = config.shows_cut() ? kMostCut : 0,
          .narrowed = true};
}

fwd_sm90::SectionOrder fwd_sm90_order(const Problem& p, const Config& config, std::int64_t queries,
                                      int splits) {
  const std::int64_t heads = config.pack_heads ? p.heads_k : p.heads_q;
  OrderProblem order;
  // Lists have rows of each sequence, as many as the longest has.
  const bool ragged = p.packed && config.lists == tile::Lists::none;
  order.blocks = ragged ? host::query_blocks(p, queries) : ceil_div(p.seq_q, queries);
  order.heads = (ragged ? 1 : p.batch) * heads * splits;
  order.heads_per_kv = heads / p.heads_k * splits;
  // Only the part of a window that the tiles at work see has to stay in the cache.
  const std::int64_t keys =
      std::min(p.seq_k, std::min(p.left, p.seq_k) + std::min(p.right, p.seq_k) + 4 * queries);
  order.kv_bytes = std::max<std::int64_t>(keys, 1) * (p.head_dim + p.head_dim_v) * 2;
  if (config.mask != Mask::none) {
    const bool is_short = p.seq_k <= kShortKeys;
    order.section_bytes = (is_short ? 4 : 16) * kMiB;
    order.last_bytes = (is_short ? 16 : 32) * kMiB;
  }
  // Each section reads the whole bias.
  if (heads_share_bias(p)) order.section_bytes = order.last_bytes = kSharedBiasSection;
  return section_order(order);
}

FwdSm90Choice fwd_sm90_choose(const Problem& p, const Hardware& machine) {
  FwdSm90Choice best;
  if (plans_one_entry(p)) {
    best = fwd_sm90_choose(one_entry(p), machine);
    if (best.tile == nullptr) return best;
    best.ms = serves_few(p) ? served_ms(p, *best.tile, best.splits, machine)
                            : predict(p, *best.tile, best.splits, machine);
    return best;
  }
  if (takes_first_kernel(p)) {
    const FwdSm90Tile& tile = fwd_sm90_tiles(p).front();
    return {&tile, 1, predict(p, tile, 1, machine)};
  }
  const bool reads = reads_for_few(p);
  const bool serves = serves_few(p);
  const bool chunks = is_ragged_chunk(p);
  // Of 17 ragged entries 24 parts took 0.2555 ms, 16 parts 0.2454 (an H200,
  // bench/results/h200/served-forms.csv).
  const int most_splits = serves && host::is_ragged(p) ? 16 : kMostSplits;
  double best_rank = 0.0;
  const bool one_warpgroup = (reads || serves) && fills_one_warpgroup(p);
  // Beside dropout nobody has timed it.
  const bool maps = prefers_map(p) && !drops(p);
  for (const FwdSm90Tile& tile : maps ? fwd_sm90_masked_tiles(p) : fwd_sm90_tiles(p)) {
    if (tile.for_windows() && !is_short_window(p)) continue;
    if (tile.shape.warpgroups > 1 && one_warpgroup) continue;
    const std::int64_t blocks = ceil_div(p.seq_k, tile.shape.block_n);
    const auto consider = [&](std::int64_t wanted) {
      if (wanted < 1) return;
      // Fewer than two blocks a part do not pay for the merge.
      if (wanted > 1 && (blocks < 2 * wanted || wanted > most_splits)) return;
      if (wanted > 1 && (fwd_sm90_lists_tiles(p, tile) || tile.shape.resident > 1)) return;
      const std::int64_t per_part = ceil_div(blocks, wanted);
      const int splits = static_cast<int>(ceil_div(blocks, per_part));
      if (!admits(p, {tile.block_m(), tile.shape.block_n, splits})) return;
      const Reading few = reads ? reading(p, tile, splits, machine) : Reading();
      const double ms = serves   ? served_ms(p, tile, splits, machine)
                        : reads  ? few.ms
                        : chunks ? ragged_ms(p, tile, splits, machine)
                                 : predict(p, tile, splits, machine);
      const double rank = reads ? few.rank : ms;
      if (best.tile != nullptr && rank >= best_rank) return;
      const double waves = waves_of(p, tile, splits, machine);
      best = {&tile, splits, ms, reads ? reading_factor(waves) : 1.0};
      best_rank = rank;
    };
    for (const int wanted : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48}) consider(wanted);
    // Parts that fill the card a whole number of times.
    const QueryGrid g = query_grid(p, tile);
    for (const std::int64_t times : {1, 2, 3, 4, 6}) {
      if (times > 3 && !reads && !serves) break;
      consider(times * machine.multiprocessors / std::max<std::int64_t>(1, g.heads * g.blocks));
    }
  }
  return best;
}

}  // namespace tilewise::cuda
