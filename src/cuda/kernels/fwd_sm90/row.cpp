#include "cuda/kernels/fwd_sm90/row.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "cuda/driver/device.h"
#include "cuda/host/common.h"
#include "cuda/host/constants.h"
#include "cuda/host/expressions.h"
#include "cuda/host/options.h"
#include "cuda/host/shared_bias.h"
#include "cuda/host/sm90_refusal.h"
#include "cuda/host/tile_counter.h"
#include "cuda/host/tma_maps.h"
#include "cuda/kernels/fwd_sm90/fill.h"
#include "cuda/kernels/fwd_sm90/tiles.h"
#include "cuda/kernels/fwd_sm90/times.h"
#include "cuda/kernels/fwd_sm90/unit.h"
#include "cuda/kernels/rows/combine.h"
#include "cuda/kernels/rows/documents.h"
#include "cuda/kernels/rows/mask_bits.h"
#include "cuda/kernels/rows/score_strip.h"
#include "cuda/kernels/tile_lists/kinds.h"
#include "cuda/kernels/tile_lists/maker.h"
#include "problem/blocks.h"
#include "tilewise/error.h"

namespace tilewise::cuda {
namespace {

using fwd_sm90::Args;
using fwd_sm90::Config;
using fwd_sm90::DocumentArgs;
using fwd_sm90::ListArgs;
using fwd_sm90::PagedArgs;
using fwd_sm90::SectionOrder;

}  // namespace

std::string fwd_sm90_refusal(const Problem& p, const Hardware& machine) {
  std::string reason = sm90_refusal(p, machine);
  if (!reason.empty()) return reason;
  if (p.block_list.defined() && p.paged) {
    return "block lists over pages are not supported by this kernel";
  }
  reason = tile_lists_refusal(p);
  if (!reason.empty()) return reason;
  if (p.batch == 0 || p.heads_q == 0 || p.seq_q == 0 || p.seq_k == 0) {
    return "empty problems are left to flash_fwd_sm80";
  }
  if ((p.packed && p.total_q > kMostPackedRows) ||
      (p.packed_keys() && p.total_k > kMostPackedRows)) {
    return "packed tensors of more than " + std::to_string(kMostPackedRows) +
           " rows are not supported by this kernel";
  }
  return sm90_maps_refusal(p);
}

namespace {

/// A kernel that takes documents as packed sequences.
struct DocumentKernel {
  Config config;
  SectionOrder order;

  int rows() const { return 64 * config.shape.warpgroups; }
};

/// What run() goes by.
struct Decided {
  Config config;
  SectionOrder order;
  int pack_shift = 0;
  int splits = 1;
  std::optional<DocumentKernel> documents = std::nullopt;  ///< tried first
};

/// Workspace beside the caller's tensors: the tile counter, then what the parts leave.
std::vector<MemoryPart> workspace_items(const Problem& p, const Decided& decided) {
  const auto& [config, order, pack_shift, splits, documents] = decided;
  std::vector<MemoryPart> items;
  if (config.schedule.dynamic) {
    items.push_back(host::tile_counter_memory());
  }
  if (splits > 1) add_partial_results(items, p, splits);
  TileListsMaker(p, fwd_sm90_wanted_lists(config, pack_shift)).add_memory(items);
  MaskBitsMaker(p, config.shape.block_n, false).add_memory(items);
  ScoreStrip(p, config.expressions.strip).add_memory(items);
  if (documents) {
    items.push_back(host::tile_counter_memory());
    DocumentBlocks(p, documents->rows()).add_memory(items);
  }
  return items;
}

/// What split keys take beside what fwd_sm90_choose counts to choose among tiles, as one head
/// showed on an H200 (bench/results/h200/assignment-sm90.json): merging takes longer the more
/// parts, and where all parts run at once that is the longest, under a mask up to twice their
/// average.
double split_ms(const Problem& p, const FwdSm90Choice& choice, const Hardware& machine) {
  constexpr double kMergedPartMs = 3.5e-4, kTail = 0.35;
  using namespace fwd_sm90_times;
  if (choice.splits <= 1 || serves_few(p) || reads_for_few(p) || is_ragged_chunk(p)) return 0.0;
  const double merge = kMergedPartMs * choice.splits;
  const FwdSm90Tile& tile = *choice.tile;
  const double rows = std::ceil(static_cast<double>(p.seq_q) / tile.block_m());
  const double jobs = static_cast<double>(p.batch * p.heads_q) * rows * choice.splits;
  if (!p.has_positional_mask() || jobs > machine.multiprocessors) return merge;
  const double blocks = static_cast<double>(p.seq_k) / tile.shape.block_n / choice.splits;
  return merge + 1e-3 * tile.masked.block_us * kTail * blocks;
}

/// Its tile is the best one for documents of a typical length, as only the device knows theirs. Not
/// where the rows of a tile would be those of several heads.
std::optional<DocumentKernel> document_kernel(const Problem& p, const Hardware& machine) {
  if (!compares_documents(p)) return std::nullopt;
  constexpr std::int64_t kTypical = 1024;
  const Problem packed = by_documents(p);
  Problem typical = packed;
  typical.seq_q = typical.seq_k = std::min(p.seq_q, kTypical);
  Problem apart = typical;
  apart.packed = false;
  apart.batch = ceil_div(p.batch * p.seq_q, typical.seq_q);
  apart.total_q = apart.total_k = typical.seq_q;
  const FwdSm90Tile* best = nullptr;
  double least_ms = 0.0;
  for (const FwdSm90Tile& tile : fwd_sm90_tiles(packed)) {
    if (tile.for_windows()) continue;
    const double ms = fwd_sm90_times::predict(apart, tile, 1, machine);
    if (best == nullptr || ms < least_ms) best = &tile, least_ms = ms;
  }
  if (best == nullptr || best->shape.warpgroups == 1) return std::nullopt;
  DocumentKernel made;
  made.config = fwd_sm90_documents_config(packed, *best);
  if (made.config.pack_heads || !made.config.schedule.dynamic) return std::nullopt;
  made.order = fwd_sm90_order(typical, made.config, made.rows(), 1);
  return made;
}

Decided decide(const Problem& p, const FwdSm90Choice& choice, const Hardware& machine) {
  const FwdSm90Tile& tile = *choice.tile;
  Decided decided;
  decided.config = fwd_sm90_config(p, tile, choice.splits > 1);
  decided.pack_shift = fwd_sm90_pack_shift(p, tile);
  decided.order =
      fwd_sm90_order(p, decided.config, tile.block_m() >> decided.pack_shift, choice.splits);
  decided.splits = choice.splits;
  decided.documents = document_kernel(p, machine);
  return decided;
}

Preparation prepare(const KernelRow& row, const Problem& p, const Hardware& machine) {
  if (has_tree_words(p)) return prepare(row, by_tree_words(p), machine);
  std::string reason = fwd_sm90_refusal(p, machine);
  if (!reason.empty()) return reason;
  const FwdSm90Choice choice = fwd_sm90_choose(p, machine);
  if (choice.tile == nullptr) return "it has no such form";  // of a tuned one
  const Decided decided = decide(p, choice, machine);
  Cost cost;
  cost.block_m = choice.tile->block_m();
  cost.block_n = choice.tile->shape.block_n;
  cost.splits = choice.splits;
  cost.memory = workspace_items(p, decided);
  for (const Tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.lse}) {
    cost.bytes_moved += static_cast<double>(t->numel() * dtype_bytes(t->dtype));
  }
  // tile_lists, which the kernel's start overlaps.
  const bool listed = decided.config.lists != fwd_sm90::Lists::none;
  const double lists_ms = listed ? host::kKernelMs : 0.0;
  const double mask_ms =
      mask_bits_ms(MaskBitsMaker(p, choice.tile->shape.block_n, false), machine.bandwidth_gbps);
  cost.ms = choice.ms + split_ms(p, choice, machine) + lists_ms + mask_ms;
  // Where lengths are on the device, the tables may name a small part of the pools.
  if (!fwd_sm90_times::serves_few(p)) {
    const double reading = choice.reading / machine.bandwidth_gbps;
    cost.ms = std::max(cost.ms, 1e-6 * reading * cost.bytes_moved);
  }
  if (choice.splits > 1) {
    for (const MemoryPart& item : cost.memory)
      cost.bytes_moved += 2.0 * static_cast<double>(item.bytes);
  }
  return Prepared{std::move(cost), remember(decided)};
}

/// Starts the kernels of documents. What they have taken is not 0, and those that map the mask
/// function have nothing to do then.
const int* run_documents(const Problem& p, const DocumentKernel& kernel, WorkspaceCutter& workspace,
                         void* stream) {
  const Problem packed = by_documents(p);
  PagedArgs filled;
  fwd_sm90_fill(filled, packed, kernel.config, 0, sm90_set_map);
  DocumentArgs args{filled};
  args.order = kernel.order;
  args.counter = host::take_tile_counter(workspace);
  DocumentBlocks blocks(p, kernel.rows());
  blocks.take(workspace);
  blocks.make(stream);
  args.blocks = blocks.args().blocks;
  args.count = blocks.args().count;
  const std::int64_t tiles = std::int64_t{blocks.args().most} * kernel.order.heads;
  const std::int64_t grid = std::min<std::int64_t>(tiles, host::kTypicalMultiprocessors);
  launch(load_optioned(packed, kernel.config, p.device.index, fwd_sm90_unit),
         host::following(grid, p.device.index), stream, args);
  return args.count;
}

void run(const KernelRow& row, const Problem& p, const Context& context) {
  if (has_tree_words(p)) return run(row, by_tree_words(p), context);
  const auto& decided = context.decided<Decided>();
  Config config = decided.config;
  if (config.options.bias()) config.options.pairs.staged &= bias_begins_even(p);
  const int splits = decided.splits;
  const bool split = splits > 1;
  WorkspaceCutter workspace(context.workspace);
  const ContextScope scope(p.device.index);  // tensor maps are made in a context
  PagedArgs args;
  fwd_sm90_fill(args, p, config, decided.pack_shift, sm90_set_map);
  args.order = decided.order;
  args.tiles = args.order.blocks * args.order.heads;
  if (config.schedule.dynamic) args.counter = host::take_tile_counter(workspace);
  if (split) {
    const PartialResults partial = take_partial_results(workspace, p, splits);
    args.splits = splits;
    args.part_rows = p.query_rows();
    args.o_part = partial.o;
    args.m_part = partial.statistics;
  }
  const Kernel kernel = load_optioned(p, config, p.device.index, fwd_sm90_unit);
  const std::int64_t grid = std::min<std::int64_t>(
      args.tiles, std::int64_t{host::kTypicalMultiprocessors} * config.shape.resident);
  const tile::Strip strip = ScoreStrip(p, config.expressions.strip).make(workspace, context.stream);
  TileListsMaker lists(p, fwd_sm90_wanted_lists(config, decided.pack_shift));
  lists.take(workspace);
  MaskBitsMaker mask(p, config.shape.block_n, false);
  mask.take(workspace);
  mask.make(context.stream);
  if (decided.documents)
    lists.leave_where(run_documents(p, *decided.documents, workspace, context.stream));
  if (config.lists != fwd_sm90::Lists::none) {
    args.lists = lists.of_queries();
    lists.make(context.stream, mask.bits());
    launch_optioned<ListArgs>(p, kernel, host::following(grid, p.device.index), context.stream,
                              args, mask.bits(), strip);
  } else if (p.paged) {
    launch_optioned(p, kernel, {.x = grid}, context.stream, args, mask.bits(), strip);
  } else {
    launch_optioned<Args>(p, kernel, {.x = grid}, context.stream, args, mask.bits(), strip,
                          config.boxes_bias() ? bias_tiles(p.bias, 64) : tile::BiasTiles{});
  }
  if (split) combine_parts(p, {args.o_part, args.m_part}, splits, context.stream);
}

}  // namespace

const KernelRow kFlashForwardSm90 = {
    .name = "flash_fwd_sm90",
    .implementation = "flash",
    .device = DeviceType::cuda,
    .pass = Pass::forward,
    .summary = "tiled, online softmax; wgmma, TMA, warpgroups of different roles; bf16, fp16",
    .prepare = prepare,
    .run = run};

void add_fwd_sm90_units(std::vector<PackUnit>& units, int arch) {
  if (arch != 90) return;
  const auto add_unit = [&](const Config& config) {
    const PackUnit unit = {.unit = fwd_sm90_unit(config),
                           .row = kFlashForwardSm90.name,
                           .instruction = "wgmma.mma_async"};
    const auto same = [&](const PackUnit& other) { return other.unit == unit.unit; };
    if (std::none_of(units.begin(), units.end(), same)) units.push_back(unit);
  };
  const auto problem = [](DType dtype, std::int64_t dim, std::int64_t seq_q, std::int64_t seq_k) {
    Problem p;
    p.dtype = dtype;
    p.batch = p.heads_q = p.heads_k = 1;
    p.seq_q = seq_q;
    p.seq_k = seq_k;
    p.head_dim = p.head_dim_v = dim;
    p.scale = 1.0F;
    return p;
  };
  const auto add = [&](DType dtype, std::int64_t dim, bool causal, std::int64_t seq,
                       bool windowed) {
    Problem p = problem(dtype, dim, seq, seq);
    if (causal) p.causal = Causal::bottom_right, p.right = 0;
    if (windowed) p.left = 1023;
    for (const FwdSm90Tile& tile : fwd_sm90_tiles(p)) {
      if (tile.shape.warpgroups > 1 && (windowed || !tile.for_windows()))
        add_unit(fwd_sm90_config(p, tile, false));
    }
  };
  for (const std::int64_t dim : {64, 96, 128, 192, 256}) {
    for (const bool causal : {false, true}) {
      // Short and long sequences may take different configs.
      add(DType::bfloat16, dim, causal, 1024, false);
      add(DType::bfloat16, dim, causal, 16384, false);
      if (dim == 64 || dim == 128) add(DType::float16, dim, causal, 16384, false);
    }
  }
  add(DType::bfloat16, 128, true, 16384, true);
}

namespace {

/// That options are added to.
Problem plain_problem(std::int64_t dim) {
  Problem p;
  p.dtype = DType::bfloat16;
  p.batch = p.heads_q = p.heads_k = 16;
  p.seq_q = p.seq_k = 8192;
  p.head_dim = p.head_dim_v = dim;
  p.scale = 1.0F;
  return p;
}

}  // namespace

void add_fwd_sm90_listed_units(std::vector<PackUnit>& units, int arch) {
  if (arch != 90) return;
  for (const std::int64_t dim : {64, 128}) {
    Problem p = plain_problem(dim);
    p.block_list.row_offsets.rank = 3;
    p.block_list.block_q = p.block_list.block_k = 64;
    units.push_back({.unit = fwd_sm90_unit(fwd_sm90_config(p, fwd_sm90_tiles(p)[0], false)),
                     .row = kFlashForwardSm90.name,
                     .instruction = "wgmma.mma_async"});
  }
}

void add_fwd_sm90_option_units(std::vector<PackUnit>& units, int arch) {
  if (arch != 90) return;
  for (const std::int64_t dim : {64, 128}) {
    const Problem plain = plain_problem(dim);
    const auto add = [&](const Problem& p) {
      const auto tiles = fwd_sm90_tiles(p);
      // As plans choose: masks, dropout and biases of full rows are faster with blocks of 128 keys.
      const bool by_128 =
          p.mask.defined() || drops(p) || (p.bias.defined() && p.causal == Causal::none);
      const FwdSm90Tile& tile = by_128 && tiles[0].shape.block_n != 128 ? tiles[1] : tiles[0];
      units.push_back({.unit = optioned_unit(fwd_sm90_unit(fwd_sm90_config(p, tile, false))),
                       .row = kFlashForwardSm90.name,
                       .instruction = "wgmma.mma_async",
                       .allowed_spill_bytes = 160});
    };
    Problem p = plain;
    p.sinks.rank = 1;
    add(p);
    p = plain;
    p.mask.rank = 4;
    add(p);
    p = plain;
    p.dropout.p = 0.1;
    add(p);
    p = plain;
    p.bias.rank = 4;
    p.bias.dtype = DType::bfloat16;
    p.bias.sizes = {1, 1, p.seq_q, p.seq_k};
    p.bias.strides = {0, 0, p.seq_k, 1};
    add(p);
    p.causal = Causal::bottom_right, p.right = 0;
    if (dim == 128) add(p);
    p = plain;
    p.causal = Causal::bottom_right, p.right = 0;
    p.tree.rank = 3;
    if (dim == 128) add(p);
  }
}

void add_fwd_sm90_mask_units(std::vector<PackUnit>& units, int arch) {
  if (arch != 90) return;
  for (const std::int64_t dim : {64, 128}) {
    Problem p = plain_problem(dim);
    p.mask.rank = 4;
    const Config config = fwd_sm90_config(p, fwd_sm90_masked_tiles(p)[0], false);
    units.push_back({.unit = optioned_unit(fwd_sm90_unit(config)),
                     .row = kFlashForwardSm90.name,
                     .instruction = "wgmma.mma_async",
                     .allowed_spill_bytes = 160});
  }
}

}  // namespace tilewise::cuda
