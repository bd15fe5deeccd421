#include "cuda/kernels/fwd_sm80/row.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "cuda/driver/device.h"
#include "cuda/host/common.h"
#include "cuda/host/expressions.h"
#include "cuda/host/fill.h"
#include "cuda/host/served.h"
#include "cuda/kernels/fwd_sm80/args.h"
#include "cuda/kernels/fwd_sm80/tiles.h"
#include "cuda/kernels/rows/combine.h"
#include "cuda/kernels/rows/pack.h"
#include "cuda/kernels/tile_lists/kinds.h"
#include "cuda/kernels/tile_lists/maker.h"
#include "plan/accounting.h"
#include "plan/batch_invariance.h"
#include "plan/forms.h"
#include "problem/blocks.h"
#include "problem/grouped.h"

namespace tilewise::cuda {
namespace {

using namespace fwd_tiles;
using fwd_sm80::Args;
using fwd_sm80::RaggedArgs;

/// Blocks that fit a multiprocessor: an sm_86 with its 100 KiB takes fewer than the tables say.
int resident_blocks(const Tile& tile, int bytes, const Hardware& machine) {
  const int fit = machine.shared_kib * 1024 / std::max(1, bytes);
  return std::clamp(fit, 1, tile.min_blocks);
}

std::int64_t keys_per_split(const Problem& p, int block_n, int splits) {
  return round_up(ceil_div(p.seq_k, splits), block_n);
}

std::int64_t row_blocks(const Problem& p, const Tile& tile) {
  return host::query_blocks(p, tile.shape.block_m);
}
/// Tiles that have rows.
double full_tiles(const Problem& p, const Tile& tile) {
  const double heads = static_cast<double>(p.stored_batch() * p.heads_q);
  return heads * (static_cast<double>(row_blocks(p, tile)) - host::idle_blocks(p));
}

/// Most keys that a tile of `rows` rows sees.
double most_keys(const Problem& p, int rows) {
  double most = static_cast<double>(p.seq_k);
  if (p.left != Problem::kUnbounded && p.right != Problem::kUnbounded) {
    most = std::min(most, std::max(0.0, static_cast<double>(p.left + p.right + 1 + rows)));
  }
  if (p.block_list.defined()) {
    const double average = visible_pairs(p) / static_cast<double>(p.query_rows());
    most = std::min(most, average + rows);
  }
  return most;
}

/// A tile's first K and V, and a row of its Q and O.
constexpr double kTileMs = 1.1e-3, kTileRowMs = 4e-5;
/// The merge of the warps that share rows.
constexpr double kMergeMs = 1.8e-3;
/// The merge of the parts, beside its bytes.
constexpr double kCombineMs = 3.6e-3;

constexpr double kLeastDims = 56.0;

/// Keys that a tile takes: those of a row, or what any of its listed row blocks sees.
double keys_seen(const Problem& p, const Tile& tile) {
  const double seen = visible_pairs(p) / static_cast<double>(p.query_rows());
  return seen * taken_over_listed(p, tile.shape.block_m, 1);
}

/// Keys that a row takes on average: blocks that a diagonal or the end of the keys cuts are
/// computed whole.
double keys_computed(const Problem& p, const Tile& tile) {
  const double seen = keys_seen(p, tile);
  if (p.has_positional_mask()) {
    const double cut = 0.5 * (tile.shape.block_m + tile.shape.block_n) +
                       (p.packed ? 0.5 * tile.shape.block_n : 0.0);
    return std::min(static_cast<double>(p.seq_k), seen + cut);
  }
  return p.packed ? seen + 0.5 * tile.shape.block_n
                  : std::ceil(seen / tile.shape.block_n) * tile.shape.block_n;
}

/// The share of the memory's rate at which keys and values come: rows of 128 bytes and less are
/// slower (an H200, 8192 keys, 64 heads on 8: 0.89 at dim 64, 0.98 at 128; 2820 keys 0.83;
/// bench/results/h200/serving.json).
double read_share(const Problem& p) {
  const std::int64_t bytes = std::min(p.head_dim, p.head_dim_v) * dtype_bytes(p.dtype);
  return bytes <= 128 ? 0.87 : 1.0;
}

/// Rows of a tile's Q and O that take time. Those past the last of few queries take none.
double rows_of_tile(const Problem& p, const Tile& tile) {
  const bool few = p.seq_q <= host::kFewQueries;
  return static_cast<double>(few ? p.seq_q : tile.shape.block_m);
}

/// Predicted milliseconds of a tile with the keys in `splits` parts.
double predict(const Problem& p, const Tile& tile, int bytes, int splits, const Hardware& machine) {
  const double grid = full_tiles(p, tile);
  if (grid == 0.0 || p.seq_k == 0) return host::kKernelMs;
  // A pair's exp, maximum and sum take what the products of dims 28 do: below that no time is
  // saved.
  // Between 64 and 96 the padding is computed too (dims 72 and 80 on an H200: 0.125 and 0.122 ms).
  const std::int64_t dims = p.head_dim + p.head_dim_v;
  const bool pads = std::max(p.head_dim, p.head_dim_v) > 64;
  const double pair_flops =
      2.0 * std::max(kLeastDims, pads ? product_columns(p) : static_cast<double>(dims));
  const double keys = keys_computed(p, tile);
  host::Load load;
  load.flops = grid * tile.shape.block_m * keys * pair_flops;
  load.tflops = tile.tflops;
  load.products = host::products(p);
  load.tile_ms =
      kTileMs + kTileRowMs * rows_of_tile(p, tile) + (tile.shape.key_warps > 1 ? kMergeMs : 0.0);
  load.blocks_per_sm = resident_blocks(tile, bytes, machine);
  double part_keys = most_keys(p, tile.shape.block_m), parts = 1.0;
  if (splits > 1) {
    part_keys =
        std::min(part_keys, static_cast<double>(keys_per_split(p, tile.shape.block_n, splits)));
    parts = std::min<double>(splits, keys / part_keys + 0.5);
  }
  load.tiles = grid * std::max(1.0, parts);
  load.largest = tile.shape.block_m * part_keys * pair_flops;
  double ms = host::kKernelMs + host::time_ms(load, machine);
  if (splits > 1) {
    const double partial = grid * rows_of_tile(p, tile) * parts * host::padded(p.head_dim_v) * 4.0;
    ms += kCombineMs + 1e-6 * 2.0 * partial / machine.bandwidth_gbps;
  }
  return ms;
}

struct Choice {
  const Tile* tile = nullptr;
  int splits = 1;
  double ms = 0.0;
};

/// What a few queries take over what is predicted, and over the rate of memory where that bounds
/// them.
struct Slower {
  double all = 1.0, reading = 1.0;
};
/// Tiles that come after others and those that parts follow are slower, tiles that leave places of
/// the card empty read less (an H200, bench/results/h200/served-parts.csv, serving.json).
Slower slower(const Problem& p, const Choice& choice, const Hardware& machine) {
  constexpr double kLater = 0.05, kSplit = 0.13, kIdle = 0.3, kFree = 0.08, kServed = 1.7;
  // Blocks of 128 keys come no faster than two of 64, beside which more tiles wait.
  constexpr double kWideBlocks = 1.25;
  if (p.seq_q > host::kFewQueries || p.packed) return {};
  // Pages of 16 to 256 rows, of equal and of ragged lengths.
  if (p.paged || p.key_lengths.defined()) return {.all = kServed};
  const Tile& tile = *choice.tile;
  const int bytes = shared_bytes(make_config(p, tile, false, machine.shared_kib));
  const double places =
      std::max(1, machine.multiprocessors) * resident_blocks(tile, bytes, machine);
  const double waves = full_tiles(p, tile) * choice.splits / places;
  if (waves <= 0.0) return {};
  const double idle = waves < 1.0 ? std::min(1.0, 1.0 / waves - 1.0) : 0.0;
  const bool wide = tile.shape.block_n > 64 && tile.shape.key_warps == 1;
  return {(wide ? kWideBlocks : 1.0) *
              (1.0 + (waves > 1.0 ? kLater : 0.0) + (choice.splits > 1 ? kSplit : 0.0)),
          1.0 + kIdle * std::max(0.0, idle - kFree)};
}

/// False for what a tile is not for. A step has one scale factor for its keys.
bool suits(const Tile& t, const Problem& p, int bytes, const Hardware& machine) {
  if (host::form(p).scaled && t.shape.block_n > tile::kScaleRows) return false;
  if (t.shape.key_warps == 1) return true;
  const double at_once =
      static_cast<double>(machine.multiprocessors) * resident_blocks(t, bytes, machine);
  // Where all rows of a head fit one of them, larger tiles have nothing to fill them with.
  const bool one_tile = !p.packed && row_blocks(p, t) == 1;
  return (one_tile || full_tiles(p, t) <= at_once) && p.seq_k <= t.most_keys;
}

/// The tile and the number of parts with the least predicted time; none when no tile fits the
/// machine.
Choice choose(const KernelRow& row, const Problem& p, const Hardware& machine) {
  Choice best;
  double best_rank = 0.0;
  if (plans_one_entry(p)) {
    best = choose(row, one_entry(p), machine);
    if (best.tile == nullptr) return best;
    const int bytes = shared_bytes(make_config(p, *best.tile, false, machine.shared_kib));
    return {best.tile, best.splits, predict(p, *best.tile, bytes, best.splits, machine)};
  }
  for (const Tile& tile : tiles(p, row.config != nullptr)) {
    const int bytes = shared_bytes(make_config(p, tile, false, machine.shared_kib));
    if (bytes > machine.shared_kib * 1024 || !suits(tile, p, bytes, machine)) continue;
    const bool full =
        host::fills(full_tiles(p, tile), resident_blocks(tile, bytes, machine), machine);
    for (const int wanted : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32}) {
      // Fewer than 64 keys a part do not pay for the merge.
      const bool whole =
          full || row.config != nullptr || tile.shape.key_warps > 1 || has_tile_lists(p);
      if (wanted > 1 && (whole || p.seq_k < std::int64_t{64} * wanted)) break;
      const std::int64_t keys = keys_per_split(p, tile.shape.block_n, wanted);
      const int splits = wanted == 1 ? 1 : static_cast<int>(ceil_div(p.seq_k, keys));
      if (!admits(p, {tile.shape.block_m, tile.shape.block_n, splits})) continue;
      const double ms = predict(p, tile, bytes, splits, machine);
      const double rank = ms * slower(p, {&tile, splits, ms}, machine).all;
      if (best.tile == nullptr || rank < best_rank) best = {&tile, splits, ms}, best_rank = rank;
      if (takes_first_kernel(p)) return best;
    }
  }
  return best;
}

/// What run() goes by.
struct Decided {
  Config config;
  tile::TileOrder order;
  int min_blocks = 1;
  int keys_per_split = 0;
};

Decided decide(const Problem& p, const Choice& choice, const Hardware& machine) {
  const Tile& tile = *choice.tile;
  Decided decided;
  decided.config = make_config(p, tile, choice.splits > 1, machine.shared_kib);
  decided.min_blocks = tile.min_blocks;
  decided.keys_per_split = static_cast<int>(keys_per_split(p, tile.shape.block_n, choice.splits));
  const Config& config = decided.config;
  const std::int64_t blocks = row_blocks(p, tile), heads = p.stored_batch() * p.heads_q;
  const double head_bytes = static_cast<double>(p.packed_keys() ? p.total_k : p.seq_k) *
                            config.form.planes * 2.0 * (config.head_dim + config.head_dim_v) /
                            static_cast<double>(p.group());
  decided.order = {.blocks = static_cast<unsigned>(blocks),
                   .splits = static_cast<unsigned>(choice.splits),
                   .heads = static_cast<unsigned>(heads),
                   .section = host::section(config.positional, heads, blocks, head_bytes,
                                            host::kTypicalMultiprocessors),
                   .last_first = config.positional};
  return decided;
}

WantedLists wanted_lists(const Problem& p, const fwd_sm80::Shape& shape) {
  return {.tile_q = shape.block_m, .tile_k = shape.block_n, .kind = mma_lists(p)};
}

Preparation prepare(const KernelRow& row, const Problem& given, const Hardware& machine) {
  Takes takes = host::kTakes;
  if (row.config != nullptr) takes.most_head_dim = 256;
  std::string reason = host::refusal(given, machine, takes);
  if (reason.empty() && given.block_list.defined())
    reason = tile_lists_refusal(given, machine.shared_kib);
  if (!reason.empty()) return reason;
  const Problem p = grouped(given);
  const Choice choice = choose(row, p, machine);
  if (choice.tile == nullptr) {
    return "no tile for head dims " + std::to_string(p.head_dim) + ", " +
           std::to_string(p.head_dim_v) + " fits " + std::to_string(machine.shared_kib) +
           " KiB of shared memory";
  }
  const Operands operands(p);
  Cost cost;
  cost.block_m = choice.tile->shape.block_m;
  cost.block_n = choice.tile->shape.block_n;
  cost.splits = choice.splits;
  operands.add_memory(cost.memory);
  double partial = 0.0;
  if (choice.splits > 1) {
    add_partial_results(cost.memory, p, choice.splits);
    partial = partial_bytes(p, choice.splits);
  }
  TileListsMaker(p, wanted_lists(p, choice.tile->shape)).add_memory(cost.memory);
  const auto size = [](const Tensor& t) {
    return static_cast<double>(t.numel() * dtype_bytes(t.dtype));
  };
  // The part of the pools that the tables may name.
  const double pages = p.paged ? static_cast<double>(p.batch * p.block_table.sizes[1]) /
                                     static_cast<double>(std::max<std::int64_t>(1, p.k.sizes[0]))
                               : 1.0;
  const double tensors =
      size(p.q) + pages * (size(p.k) + size(p.v)) + size(p.o) + size(p.lse) + host::pair_bytes(p);
  cost.bytes_moved = tensors + 2.0 * operands.bytes() + 2.0 * partial;
  // Short rows of Q and O arrive sooner than the choice among tiles counts.
  const double width = std::min(1.0, static_cast<double>(p.head_dim + p.head_dim_v) / 128.0);
  const double sooner = kTileRowMs * rows_of_tile(p, *choice.tile) * (1.0 - width);
  const Slower slow = slower(p, choice, machine);
  const double reading = slow.reading / (read_share(p) * machine.bandwidth_gbps);
  const double merge = choice.splits > 1 ? host::kKernelMs + kCombineMs : 0.0;
  cost.ms = slow.all * std::max(choice.ms - sooner, 1e-6 * reading * tensors + merge) +
            host::options_ms(p, 1, machine);
  if (operands.packs()) {
    cost.ms += host::kKernelMs + 1e-6 * operands.bytes() / machine.bandwidth_gbps;
  }
  if (has_tile_lists(p)) cost.ms += host::kKernelMs;
  return Prepared{std::move(cost), remember(decide(p, choice, machine))};
}

void fill(Args& args, const Problem& p, const Operands& operands) {
  fill_shared(args, p, operands);
  args.o = host::view4(p.o);
  args.o_vectors = host::has_vectors(p.o);
  host::fill_lse_output(args, p);
}

/// O, m and l of each part to workspace.
void fill_parts(Args& args, const Problem& p, int splits, WorkspaceCutter& workspace) {
  const std::int64_t rows = p.query_rows(), width = host::padded(p.head_dim_v);
  const std::int64_t entry = p.packed ? 0 : p.heads_q * p.total_q;
  const PartialResults partial = take_partial_results(workspace, p, splits);
  args.o = {partial.o, entry * width, p.total_q * width, width, 1};
  args.o_vectors = true;
  args.o_split = rows * width;
  args.lse = partial.statistics;
  args.lse_b = entry;
  args.lse_h = p.total_q;
  args.lse_s = 1;
  args.lse_split = rows;
}

RaggedArgs ragged_args(const Args& args, const Problem& p) {
  RaggedArgs ragged;
  ragged.args = args;
  if (p.packed) {
    ragged.queries = host::query_sequences(p);
    if (p.packed_keys()) ragged.keys = host::key_sequences(p);
    ragged.chunked_q = host::is_chunked(p, 0);
    ragged.chunked_k = host::is_chunked(p, 1);
    ragged.chunked_v = host::is_chunked(p, 2);
  }
  if (p.paged) ragged.pages = host::pages(p);
  return ragged;
}

void run(const KernelRow& /*row*/, const Problem& given, const Context& context) {
  const Problem p = grouped(given);
  const int device = p.device.index;
  const auto& decided = context.decided<Decided>();
  const Config& config = decided.config;
  const auto splits = static_cast<int>(decided.order.splits);
  Operands operands(p);
  WorkspaceCutter workspace(context.workspace);
  operands.prepare(workspace, context.stream);
  Args args;
  fill(args, p, operands);
  args.order = decided.order;
  if (config.split) {
    fill_parts(args, p, splits, workspace);
    args.keys_per_split = decided.keys_per_split;
  }
  if (config.listed()) {
    TileListsMaker lists(p, wanted_lists(p, config.shape));
    lists.take(workspace);
    lists.make(context.stream);
    args.lists = lists.of_queries();
  }
  const int min_blocks = decided.min_blocks;
  const Kernel kernel = load_expressed(
      p, config, device, [min_blocks](const Config& c) { return unit(c, min_blocks); });
  const std::int64_t tiles = std::int64_t{args.order.blocks} * args.order.heads * splits;
  const bool follows = operands.packs() || config.listed();
  const Grid grid = follows ? host::following(tiles, device) : Grid{.x = tiles};
  for (int slice = 0; slice < config.slices; ++slice) {
    const Args own = slice_of(args, slice, config);
    config.ragged() ? launch_expressed(p, kernel, grid, context.stream, ragged_args(own, p))
                    : launch_expressed(p, kernel, grid, context.stream, own);
  }
  if (config.split)
    combine_parts(p, {static_cast<float*>(args.o.data), args.lse}, splits, context.stream);
}

std::string for_comparison(const KernelRow&, const Problem&) {
  return "its 16 x 16 tiles are there for comparison";
}

}  // namespace

const KernelRow kFlashForwardSm80 = {
    .name = "flash_fwd_sm80",
    .implementation = "flash",
    .device = DeviceType::cuda,
    .pass = Pass::forward,
    .summary = "tiled, online softmax; mma.sync, cp.async; float32 as two fp16 planes",
    .prepare = prepare,
    .run = run};

/// The row's config: what it says is that there is one.
constexpr bool kCompares = true;

const KernelRow kFlashForwardTile16 = {
    .name = "flash_fwd_tile16",
    .implementation = "flash",
    .device = DeviceType::cuda,
    .pass = Pass::forward,
    .summary = "flash_fwd_sm80 with the 16 x 16 tiles of the course (seed 004)",
    .prepare = prepare,
    .run = run,
    .config = &kCompares,
    .on_trial = for_comparison};

namespace {

/// Adds the tile's kernel unless an architecture cannot hold it.
void add_unit(std::vector<PackUnit>& units, int arch, const Problem& p, const Tile& tile,
              bool split) {
  const int limit_kib = host::shared_kib(arch);
  const KernelUnit made = unit(make_config(p, tile, split, limit_kib), tile.min_blocks);
  if (made.shared_bytes > limit_kib * 1024) return;
  // NOTE: the spills of the 32-row warps (see fwd_sm80/README.md) are of values that only masked
  // blocks use.
  units.push_back({.unit = made,
                   .row = kFlashForwardSm80.name,
                   .instruction = "mma.sync",
                   .allowed_spill_bytes = 64});
}

Problem packed_problem(DType dtype, std::int64_t dim, bool causal) {
  Problem p;
  p.dtype = dtype;
  p.head_dim = p.head_dim_v = dim;
  p.causal = causal ? Causal::bottom_right : Causal::none;
  p.scale = 1.0F;
  return p;
}

}  // namespace

void add_fwd_sm80_units(std::vector<PackUnit>& units, int arch) {
  const auto add = [&](DType dtype, std::int64_t dim, bool causal, bool split, std::size_t tile) {
    const Problem p = packed_problem(dtype, dim, causal);
    add_unit(units, arch, p, tiles(p)[tile], split);
  };
  for (const bool causal : {false, true}) {
    for (const bool split : {false, true}) {
      // On Hopper the pack is full, and flash_fwd_sm90 takes what the larger tiles are for.
      if (arch != 90 || !split) add(DType::bfloat16, 64, causal, split, 1);
      if (arch == 90) continue;
      add(DType::bfloat16, 64, causal, split, 0);
      add(DType::bfloat16, 128, causal, split, 0);
    }
    add(DType::float32, 64, causal, false, 0);
    add(DType::float32, 128, causal, false, 0);
  }
}

void add_fwd_sm80_dropout_units(std::vector<PackUnit>& units, int arch) {
  // At dim 128, and in float32 with a mask, they spill more: see fwd_sm80/README.md.
  Problem p = packed_problem(DType::bfloat16, 64, true);
  p.dropout.p = 0.1;
  add_unit(units, arch, p, tiles(p)[0], false);
  Problem exact = packed_problem(DType::float32, 64, false);
  exact.dropout.p = 0.1;
  add_unit(units, arch, exact, tiles(exact)[0], false);
}

}  // namespace tilewise::cuda
