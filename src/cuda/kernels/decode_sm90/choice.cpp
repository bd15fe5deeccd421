#include "cuda/kernels/decode_sm90/choice.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "cuda/host/common.h"
#include "cuda/host/fill.h"
#include "cuda/host/served.h"
#include "cuda/host/sm90_refusal.h"
#include "cuda/host/tma_maps.h"
#include "cuda/jit/config_text.h"
#include "plan/accounting.h"
#include "plan/batch_invariance.h"
#include "plan/forms.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using decode_sm90::Config;
using decode_sm90::kBlockN;
using decode_sm90::SharedPlan;

/// What all blocks of a multiprocessor and one alone may have.
constexpr int kSharedOfAll = 228 * 1024, kSharedOfOne = 227 * 1024, kReserved = 1024;
constexpr int kMostStages = 8;
constexpr int kLeastBoxRows = 16;
/// Rows of a key head: each tile of them reads all its keys again.
constexpr std::int64_t kMostRows = 256;

/// A block of keys of 32 KiB by the number of row warps, where nothing waits for memory.
constexpr double kBlockMs[] = {0.72e-3, 0.85e-3, 0.85e-3, 1.1e-3};
constexpr double kBlockBytes = 32.0 * 1024;
/// An item's start and end, where no other hides them, and of those that two blocks of a
/// multiprocessor take after their first ones; the start of a launch; the merge of parts,
/// and each of them.
constexpr double kItemMs = 3.5e-3, kLaterItemMs = 0.9e-3, kFirstMs = 0.5e-3, kMergeMs = 2.5e-3,
                 kMergedPartMs = 6e-5;
/// What one multiprocessor reads at most.
constexpr double kMostOfOneGbps = 42.0;
/// Of the time that memory takes, where each multiprocessor has one item.
constexpr double kAlone = 0.96;
/// How much of a last item runs alone, and of a wave that is not full is lost.
/// kTailAlone: where a multiprocessor has one block.
constexpr double kTail = 0.3, kTailAlone = 0.1, kIdle = 0.4;
int panels(std::int64_t dim) { return static_cast<int>(ceil_div(dim, 64)); }

/// Rows of a box: those of pages end where pages do. 0: no boxes.
int box_rows(const Problem& p) {
  if (!sm90_map_refusal("k", p.k, Sm90Access::read).empty() ||
      !sm90_map_refusal("v", p.v, Sm90Access::read).empty())
    return 0;
  if (!p.paged) return kBlockN;
  const int shift = std::min(6, std::countr_zero(static_cast<std::uint64_t>(p.page_size)));
  return 1 << shift < kLeastBoxRows ? 0 : 1 << shift;
}
/// Whether columns can be an axis of panels.
bool in_panels(std::int64_t dim) { return dim <= 64 || dim % 64 == 0; }

std::int64_t rows_of_head(const Problem& p) { return p.seq_q * p.group(); }

int row_warps(const Problem& p) {
  const std::int64_t rows = rows_of_head(p);
  // Accumulators of wide rows leave no registers for a block's scores in one warp.
  const bool wide = std::max(panels(p.head_dim), panels(p.head_dim_v)) > 2;
  return rows <= 16 ? 1 : rows <= 32 || wide ? 2 : 4;
}

int most_stages(Config c, int limit) {
  for (c.stages = kMostStages; c.stages > 1 && SharedPlan(c).bytes > limit;) --c.stages;
  return c.stages;
}

Config make_config(const Problem& p) {
  Config c;
  c.element = p.dtype == DType::bfloat16 ? tile::Element::bf16 : tile::Element::fp16;
  c.head_dim = 64 * panels(p.head_dim);
  c.head_dim_v = 64 * panels(p.head_dim_v);
  c.row_warps = row_warps(p);
  c.box_rows = box_rows(p);
  c.whole_rows = c.box_rows > 0 && in_panels(p.head_dim) && in_panels(p.head_dim_v);
  c.paged = p.paged;
  c.modified = host::is_modified(p);
  c.tree = p.tree.defined();
  c.blocks = 2;
  c.stages = most_stages(c, kSharedOfAll / 2 - kReserved);
  if (c.stages < 3) {
    c.blocks = 1;
    c.stages = most_stages(c, kSharedOfOne);
  }
  return c;
}

/// Every entry with as many keys as its share of all_keys().
double predict(const Problem& p, const DecodeChoice& c, const Hardware& machine) {
  const double slots = static_cast<double>(std::max(1, machine.multiprocessors)) * c.config.blocks;
  const double keys = host::all_keys(p) / static_cast<double>(p.batch);
  const double parts = std::max(1.0, keys / c.items.keys);
  const auto pairs = static_cast<double>(p.batch * p.heads_k);
  const double items = pairs * c.items.row_tiles * std::ceil(parts);
  const double bytes_of_key = 2.0 * static_cast<double>(p.head_dim + p.head_dim_v);
  const double block_ms =
      kBlockMs[c.config.row_warps - 1] * (0.2 + 0.8 * bytes_of_key * kBlockN / kBlockBytes);
  const double longest =
      block_ms *
      std::max(1.0,
               std::min<double>(static_cast<double>(host::most_keys(p)), c.items.keys) / kBlockN);
  const double waves = std::ceil(items / slots);
  // A multiprocessor that has one item, and room for two, reads it faster.
  const bool alone = c.config.blocks > 1 && items <= machine.multiprocessors;
  // Other tiles of the same rows find K and V in L2.
  const double busy = std::min<double>(items, std::max(1, machine.multiprocessors));
  const double memory =
      1e-6 * pairs * keys * bytes_of_key / std::min(machine.bandwidth_gbps, kMostOfOneGbps * busy);
  const double idle = waves > 1.0 ? kIdle * (waves * slots / items - 1.0) : 0.0;
  double ms = std::max({(alone ? kAlone : 1.0 + idle) * memory, items / slots * longest, longest});
  // With two blocks on a multiprocessor one hides what the other starts and ends.
  ms += kItemMs * (c.config.blocks > 1 ? std::min(waves, 2.0) : waves);
  if (c.config.blocks > 1) ms += kLaterItemMs * std::max(0.0, items / slots - 2.0);
  // Lengths that differ, and waves that are not full, leave some multiprocessors alone at the end.
  if (p.key_lengths.defined() || (waves > 1.0 && items < waves * slots))
    ms += (c.config.blocks > 1 ? kTail : kTailAlone) * longest;
  ms += host::kKernelMs + kFirstMs;
  if (c.items.most_parts > 1) {
    const double partial =
        static_cast<double>(p.query_rows()) * parts * host::padded(p.head_dim_v) * 4.0;
    ms += kMergeMs + kMergedPartMs * c.items.most_parts +
          1e-6 * 2.0 * partial / machine.bandwidth_gbps;
  }
  return ms;
}

/// All but the parts.
DecodeChoice without_parts(const Problem& p) {
  DecodeChoice c;
  c.config = make_config(p);
  c.items.row_tiles = static_cast<int>(ceil_div(rows_of_head(p), c.config.tile_rows()));
  return c;
}
DecodeChoice with_parts(DecodeChoice c, const Problem& p, std::int64_t keys,
                        const Hardware& machine) {
  c.items = item_parts(p, c.items.row_tiles, keys);
  c.ms = predict(p, c, machine);
  return c;
}

Form form(const DecodeChoice& c) { return {c.config.tile_rows(), kBlockN, c.items.most_parts}; }

/// Keys of a part where lengths on the device differ: half of an average entry, so that none is
/// left alone with a long part, and one for each place of the card. More than kMostKeys cost 2 to 5
/// %, fewer than kLeastKeys too (an H200, bench/results/h200/served-forms.csv).
std::int64_t ragged_keys(const Problem& p, const DecodeChoice& c, const Hardware& machine) {
  constexpr double kLeastKeys = 512.0, kMostKeys = 2048.0, kMostParts = 256.0;
  const double places = static_cast<double>(std::max(1, machine.multiprocessors)) * c.config.blocks;
  const double tiles = static_cast<double>(p.heads_k * c.items.row_tiles);
  const double entries = static_cast<double>(p.batch), all = host::all_keys(p);
  const auto most = static_cast<double>(host::most_keys(p));
  const double least =
      std::max({kLeastKeys, most / kMostParts, 2.0 * most * entries * tiles / kMostItems});
  const double keys = std::min({0.5 * all / entries, all * tiles / places, kMostKeys});
  return static_cast<std::int64_t>(std::max(keys, least));
}

/// The parts with the least predicted time.
DecodeChoice best_parts(const Problem& p, const Hardware& machine) {
  const std::int64_t visible = host::most_keys(p);
  const DecodeChoice bare = without_parts(p);
  if (host::is_ragged(p)) return with_parts(bare, p, ragged_keys(p, bare, machine), machine);
  DecodeChoice best = with_parts(bare, p, p.seq_k, machine);
  // Where lengths may differ, nobody is left alone with a long part.
  const std::int64_t longest = p.key_lengths.defined() && bare.config.blocks > 1 ? 2048 : visible;
  bool found = visible <= longest && admits(p, form(best));
  const auto consider = [&](std::int64_t parts) {
    // Fewer than two blocks a part do not pay for the merge.
    if (parts < 2 || parts > 256 || visible < 2 * parts * kBlockN) return;
    const DecodeChoice c = with_parts(bare, p, ceil_div(visible, parts), machine);
    if (c.items.keys > longest && parts < 256) return;
    if (item_count(p, c.items) > kMostItems || !admits(p, form(c))) return;
    if (!found || c.ms < best.ms) best = c;
    found = true;
  };
  for (std::int64_t parts = 2; parts <= 256; parts += std::max<std::int64_t>(1, parts / 4))
    consider(parts);
  // Parts that fill the card a whole number of times, with one block a multiprocessor or two.
  const std::int64_t pairs = p.batch * p.heads_k * best.items.row_tiles;
  for (const std::int64_t times : {1, 2, 4, 6, 8, 12, 16})
    consider(times * machine.multiprocessors / pairs);
  return best;
}

}  // namespace

std::string decode_refusal(const Problem& p, const Hardware& machine) {
  std::string reason = sm90_card_refusal(p, machine);
  if (reason.empty()) reason = host::refusal(p, machine, {.paged = true, .sinks = true});
  if (!reason.empty()) return reason;
  if (p.batch == 0 || p.heads_q == 0 || p.seq_q == 0 || p.seq_k == 0)
    return "empty problems are left to flash_fwd_sm80";
  reason = items_refusal(p);
  if (!reason.empty()) return reason;
  for (const auto& [name, tensor] : {std::pair{"q", &p.q}, {"k", &p.k}, {"v", &p.v}}) {
    if (!host::has_vectors(*tensor))
      return std::string("rows of ") + name +
             " that are not aligned to 16 bytes are not supported by this kernel";
  }
  if (rows_of_head(p) > kMostRows) {
    return "more than " + std::to_string(kMostRows) +
           " queries times heads of a group are not supported by this kernel";
  }
  const double rows = std::ceil(static_cast<double>(rows_of_head(p)) / 16.0);
  const double parts = static_cast<double>(ceil_div(p.seq_k, kBlockN));
  if (static_cast<double>(p.batch * p.heads_k) * rows * std::min(parts, 64.0) > kMostItems)
    return "more than 2^23 items of work are not supported by this kernel";
  return "";
}

double decode_served_ms(const Problem& p, const DecodeChoice& c, const Hardware& machine) {
  // The kernel, its start and the merge, an item, what a last one adds of its time.
  constexpr double kStartMs = 13.8e-3, kItemMs = 2.35e-3, kTail = 0.48;
  // Over the rate of a copy, and what each place of the card reads.
  constexpr double kOverCopy = 0.9335, kPlaceGbps = 31.0;
  const double keys = host::all_keys(p), entries = static_cast<double>(p.batch);
  const double bytes_of_key = 2.0 * static_cast<double>(p.head_dim + p.head_dim_v);
  const double heads = static_cast<double>(p.heads_k * c.items.row_tiles);
  const double places = static_cast<double>(std::max(1, machine.multiprocessors)) * c.config.blocks;
  const double items = heads * entries * (keys / entries / c.items.keys + 0.5);
  const double longest = std::min(host::likely_most_keys(p), static_cast<double>(c.items.keys));
  const double reading = 1e-6 * keys * static_cast<double>(p.heads_k) * bytes_of_key;
  return kStartMs + kOverCopy * reading / machine.bandwidth_gbps + kItemMs * items / places +
         kTail * 1e-6 * longest * bytes_of_key / kPlaceGbps;
}

DecodeChoice decode_with_parts(const Problem& p, std::int64_t keys, const Hardware& machine) {
  return with_parts(without_parts(p), p, keys, machine);
}

DecodeChoice decode_choose(const Problem& p, const Hardware& machine) {
  if (plans_one_entry(p))
    return decode_with_parts(p, best_parts(one_entry(p), machine).items.keys, machine);
  return best_parts(p, machine);
}

KernelUnit decode_unit(const Config& c) {
  KernelUnit unit;
  unit.stem = "decode_sm90";
  unit.file = "decode_sm90/kernel";
  unit.config = element_text(c.element) + number_text("head_dim", c.head_dim) +
                number_text("head_dim_v", c.head_dim_v) + number_text("row_warps", c.row_warps) +
                number_text("stages", c.stages) + number_text("blocks", c.blocks) +
                number_text("box_rows", c.box_rows) + flag_text("whole_rows", c.whole_rows) +
                flag_text("paged", c.paged) + flag_text("modified", c.modified) +
                (c.tree ? flag_text("tree", true) : "");
  unit.threads = 32 * (decode_sm90::kProducerWarps + decode_sm90::kWarps);
  unit.min_blocks = c.blocks;
  unit.shared_bytes = SharedPlan(c).bytes;
  return unit;
}

}  // namespace tilewise::cuda
