#include "cuda/kernels/mla_sm90/choice.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cuda/host/common.h"
#include "cuda/host/sm90_refusal.h"
#include "cuda/host/tma_maps.h"
#include "cuda/host/wgmma_text.h"
#include "cuda/jit/config_text.h"
#include "plan/batch_invariance.h"
#include "plan/problem_key.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using mla_sm90::FewPlan;
using mla_sm90::kBlockN;
using mla_sm90::kBoxRows;
using mla_sm90::SharedPlan;

constexpr std::int64_t kMostParts = 256;

/// A tile's block of keys where nothing waits for memory; an item's start and end; the start of a
/// launch; the merge of parts, and each of them.
constexpr double kBlockMs = 1.9e-3, kItemMs = 8e-3, kFirstMs = 0.5e-3;
constexpr double kMergeMs = 2.5e-3, kMergedPartMs = 6e-5;
/// How much of a last item runs alone where lengths differ.
constexpr double kTail = 0.3;

/// Blocks of keys that the queries of an entry see at most.
std::int64_t most_blocks(const Problem& p) { return item_parts(p, 1, kBlockN).most_parts; }

/// Every entry with all its keys, which `blocks` blocks hold.
double predict(const Problem& p, const MlaChoice& c, std::int64_t blocks, const Hardware& machine) {
  const auto slots = static_cast<double>(std::max(1, machine.multiprocessors));
  const auto pairs = static_cast<double>(p.batch * p.heads_k);
  const double parts =
      std::max(1.0, std::ceil(static_cast<double>(blocks) * kBlockN / c.items.keys));
  const double items = pairs * c.items.row_tiles * parts;
  const double part_blocks = std::min(static_cast<double>(c.items.keys) / kBlockN, double(blocks));
  // Other tiles of the same rows find the keys in L2.
  const auto item_ms = [&](double at_a_time) {
    const double block_ms = 1e-6 * SharedPlan::kStage * std::ceil(at_a_time / c.items.row_tiles) /
                            machine.bandwidth_gbps;
    return part_blocks * std::pow(std::pow(kBlockMs, 4.0) + std::pow(block_ms, 4.0), 0.25) +
           kItemMs;
  };
  const double full = std::floor(items / slots), rest = items - full * slots;
  double ms = full * item_ms(slots) + (rest > 0.0 ? item_ms(rest) : 0.0);
  if (p.key_lengths.defined()) ms += kTail * part_blocks * kBlockMs;
  ms += host::kKernelMs + kFirstMs;
  if (parts > 1.0) {
    const double partial = static_cast<double>(p.query_rows()) * parts * mla_sm90::kHeadDimV * 4.0;
    ms += kMergeMs + kMergedPartMs * parts + 1e-6 * 2.0 * partial / machine.bandwidth_gbps;
  }
  return ms;
}

MlaChoice with_parts(const Problem& p, std::int64_t keys, std::int64_t blocks,
                     const Hardware& machine) {
  MlaChoice c;
  c.config.element = p.dtype == DType::bfloat16 ? tile::Element::bf16 : tile::Element::fp16;
  c.config.paged = p.paged;
  c.config.few = p.seq_q * p.group() <= FewPlan::kFewRows;
  const std::int64_t row_tiles = ceil_div(p.seq_q * p.group(), mla_sm90::kRows);
  c.items = item_parts(p, static_cast<int>(row_tiles), keys);
  c.ms = predict(p, c, blocks, machine);
  return c;
}

MlaChoice best_parts(const Problem& p, const Hardware& machine) {
  const std::int64_t blocks = most_blocks(p);
  MlaChoice best = with_parts(p, p.seq_k, blocks, machine);
  // Fewer than two blocks a part do not pay for the merge.
  for (std::int64_t parts = 2; parts <= std::min(kMostParts, blocks / 2); ++parts) {
    const std::int64_t each = ceil_div(blocks, parts);
    if (each == ceil_div(blocks, parts - 1)) continue;
    const MlaChoice c = with_parts(p, each * kBlockN, blocks, machine);
    if (item_count(p, c.items) <= kMostItems && c.ms < best.ms) best = c;
  }
  return best;
}

}  // namespace

std::string mla_refusal(const Problem& p, const Hardware& machine) {
  std::string reason = sm90_card_refusal(p, machine);
  if (!reason.empty()) return reason;
  if (p.head_dim != mla_sm90::kHeadDim || p.head_dim_v != mla_sm90::kHeadDimV)
    return "head dims other than 576 of K and 512 of V are not supported by this kernel";
  reason = host::refusal(p, machine,
                         {.paged = true, .sinks = true, .most_head_dim = mla_sm90::kHeadDim});
  if (!reason.empty()) return reason;
  if (p.batch == 0 || p.heads_q == 0 || p.seq_q == 0 || p.seq_k == 0)
    return "empty problems are not supported by this kernel";
  reason = items_refusal(p);
  if (!reason.empty()) return reason;
  if (!has_values_in_keys(p))
    return "a V that is not the first 512 columns of K is not supported by this kernel";
  if (host::is_modified(p)) {
    return "softcap, ALiBi or a scale that is not positive are not supported by this kernel";
  }
  for (const auto& [name, tensor] : {std::pair{"q", &p.q}, {"o", &p.o}}) {
    if (!host::has_vectors(*tensor))
      return std::string("rows of ") + name +
             " that are not aligned to 16 bytes are not supported by this kernel";
  }
  reason = sm90_map_refusal("k", p.k, Sm90Access::read);
  if (!reason.empty()) return reason;
  if (p.paged && p.page_size % kBoxRows != 0) {
    return "pages whose size is not a multiple of " + std::to_string(kBoxRows) +
           " are not supported by this kernel";
  }
  const double tiles = std::ceil(static_cast<double>(p.seq_q * p.group()) / mla_sm90::kRows);
  if (static_cast<double>(p.batch * p.heads_k) * tiles > kMostItems)
    return "more than 2^23 items of work are not supported by this kernel";
  return "";
}

MlaChoice mla_with_parts(const Problem& p, std::int64_t keys, const Hardware& machine) {
  return with_parts(p, keys, most_blocks(p), machine);
}

MlaChoice mla_choose(const Problem& p, const Hardware& machine) {
  if (plans_one_entry(p))
    return mla_with_parts(p, best_parts(one_entry(p), machine).items.keys, machine);
  return best_parts(p, machine);
}

void mla_fill(mla_sm90::Args& args, const Problem& p, const MlaChoice& choice,
              void (*set_map)(tile::TensorMapBytes&, const TensorMapSpec&)) {
  fill_items(args, p, choice.items);
  TensorMapSpec map = sm90_panel_map(p.k, kBoxRows, mla_sm90::kHeadDim / 64 / mla_sm90::kPieces);
  // Where memory takes the time: 0.1588 ms, with 256 bytes 0.1650 (64 x 8192 keys, 16 heads).
  if (choice.config.few) map.promotion = TensorMapSpec::Promotion::bytes128;
  set_map(args.k_map, map);
}

KernelUnit mla_unit(const mla_sm90::Config& c) {
  KernelUnit unit;
  unit.stem = "mla_sm90";
  unit.file = "mla_sm90/kernel";
  unit.config =
      element_text(c.element) + flag_text("paged", c.paged) + (c.few ? flag_text("few", true) : "");
  unit.threads = 128 * (1 + mla_sm90::kWarpgroups);
  unit.shared_bytes = SharedPlan{}.bytes;
  if (c.few) {
    unit.shared_bytes = FewPlan{}.bytes;
    unit.prelude = "#include \"cuda/tile/hopper/wgmma.cuh\"\n" +
                   wgmma_text(c.element, {.n = FewPlan::kFewRows,
                                          .operands_in_shared = true,
                                          .transposed_in_shared = true});
    return unit;
  }
  unit.prelude = "#include \"cuda/tile/hopper/wgmma.cuh\"\n" +
                 wgmma_text(c.element, {.n = kBlockN, .operands_in_shared = true}) +
                 wgmma_text(c.element, {.n = mla_sm90::kHeadDimV / mla_sm90::kWarpgroups,
                                        .operand_in_registers = true});
  return unit;
}

}  // namespace tilewise::cuda
