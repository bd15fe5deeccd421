#include "cuda/kernels/bwd_sm80/row.h"

#include <algorithm>
#include <array>
#include <span>

#include "cuda/driver/device.h"
#include "cuda/driver/memory.h"
#include "cuda/host/common.h"
#include "cuda/host/expressions.h"
#include "cuda/host/fill.h"
#include "cuda/kernels/bwd_sm80/args.h"
#include "cuda/kernels/bwd_sm80/bias.h"
#include "cuda/kernels/bwd_sm80/captures.h"
#include "cuda/kernels/bwd_sm80/lists.h"
#include "cuda/kernels/bwd_sm80/tiles.h"
#include "cuda/kernels/rows/convert.h"
#include "cuda/kernels/rows/delta.h"
#include "cuda/kernels/rows/pack.h"
#include "cuda/kernels/rows/sinks.h"
#include "cuda/kernels/tile_lists/kinds.h"
#include "plan/accounting.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using namespace bwd_tiles;
using Role = MemoryItem::Role;

std::string no_tile(const Problem& p, const Hardware& machine) {
  return "no tile for head dims " + std::to_string(p.head_dim) + ", " +
         std::to_string(p.head_dim_v) + " fits " + std::to_string(machine.shared_kib) +
         " KiB of shared memory";
}

std::string refusal(const Problem& p, const Hardware& machine, int most_head_dim) {
  Takes takes = host::kTakes;
  takes.most_head_dim = most_head_dim;
  std::string reason = host::refusal(p, machine, takes);
  if (reason.empty() && p.packed && p.dbias.defined()) {
    reason = "the gradient of a bias of packed sequences is not supported by this kernel";
  }
  return reason.empty() ? tile_lists_refusal(p, machine.shared_kib) : reason;
}

/// As Config::keeps_low(), and where the gradient of sinks asks for it.
bool keeps_low(const Problem& p) {
  return host::form(p).scaled || p.bias.defined() || p.dsinks.defined() || expressions_of(p).shifts;
}

void add_row_memory(const Problem& p, std::vector<MemoryPart>& items) {
  const auto add = [&](const char* name) {
    items.push_back(memory_part(name, Role::workspace, DType::float32,
                                {p.stored_batch(), p.heads_q, rows_q(p)}));
  };
  add("LSE, log2");
  add("delta");
  if (keeps_low(p)) add("LSE, log2, low part");
}

double tensor_bytes(const Problem& p) {
  double bytes = 0.0;
  for (const Tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.d_o, &p.lse, &p.dq, &p.dk, &p.dv}) {
    bytes += static_cast<double>(t->numel() * dtype_bytes(t->dtype));
  }
  return bytes + host::pair_bytes(p);
}

/// The part of the time that the tensors take on their way to and from memory which no product
/// hides: a head of a few short tiles has little to hide it (an H200, 77 to 1500 rows).
constexpr double kOnePassShown = 0.4, kTwoPassShown = 1.0;
double tensors_ms(const Problem& p, double shown, const Hardware& machine) {
  return shown * 1e-6 * tensor_bytes(p) / machine.bandwidth_gbps;
}

/// What both forms do before their main passes: bwd_delta reads O and dO; refine returns at once,
/// is over a small problem, or is priced by others_ms.
double before_ms(const Problem& p, const Operands& operands, const Hardware& machine) {
  const double rows =
      2.0 * static_cast<double>(p.d_o.numel() * dtype_bytes(p.d_o.dtype)) / machine.bandwidth_gbps;
  double ms = host::kKernelMs + 1e-6 * rows;
  if (operands.packs()) ms += host::kKernelMs + 1e-6 * operands.bytes() / machine.bandwidth_gbps;
  if (refines(p)) ms += host::kKernelMs;
  return ms;
}

/// Gradients of sinks and bias, in a pass whose `products` matrix products take `products_ms`: two
/// more for the bias, and two more where refine takes delta of every row for them. `queries`: a
/// tile of bwd_dq_sm80. The workspace goes to `cost`.
double others_ms(const Problem& p, const Tile& queries, double products_ms, double products,
                 Cost& cost) {
  const double two_ms = 2.0 / products * products_ms;
  double ms = 0.0;
  if (p.dsinks.defined()) ms += host::kKernelMs;
  if (p.dbias.defined()) {
    const BiasParts parts(p, queries.shape.block_m, queries.shape.block_n);
    parts.add_memory(cost.memory);
    if (parts.count > 1) {
      cost.bytes_moved += 2.0 * static_cast<double>(cost.memory.back().bytes);
      ms += host::kKernelMs;
    }
    ms += host::kKernelMs + two_ms;
  }
  if (sums_gradients(p) && host::form(p).planes == 1) ms += two_ms;
  if (wants_captures(p)) {
    add_capture_memory(p, cost.memory);
    ms += host::kKernelMs + two_ms;
  }
  return ms;
}

/// Launches of a pass that work out P, beside the `main` ones.
int launches(const Problem& p, int main) {
  return main + (p.dbias.defined() ? 1 : 0) + (refines(p) ? 1 : 0);
}

/// What run_one_pass() goes by.
struct DecidedOnePass {
  Config config;
  Tile tile;
  int splits = 1;
  Config queries;  ///< of bwd_dq_sm80, for refine and the gradient of a bias
};

Preparation prepare_one_pass(const KernelRow&, const Problem& p, const Hardware& machine) {
  std::string reason = refusal(p, machine, 256);
  if (!reason.empty()) return reason;
  if (p.dtype == DType::float32) return "float32 is not supported by this kernel";
  if (p.deterministic) return "deterministic is not supported by this kernel";
  const OnePass choice = choose_one_pass(p, machine);
  if (choice.tile == nullptr) return no_tile(p, machine);
  const Operands operands(p);
  Cost cost;
  cost.block_m = choice.tile->shape.block_m;
  cost.block_n = choice.tile->shape.block_n;
  cost.splits = choice.splits;
  const Tile& queries = two_pass_tiles(p)[0].queries;
  const ListsInTiles lists(p, *choice.tile, queries);
  lists.add_memory(cost.memory);
  operands.add_memory(cost.memory);
  add_row_memory(p, cost.memory);
  const auto sums = [&](const char* name, std::int64_t heads, std::int64_t rows, int dim) {
    cost.memory.push_back(
        memory_part(name, Role::workspace, DType::float32, {p.stored_batch(), heads, rows, dim}));
    return static_cast<double>(cost.memory.back().bytes);
  };
  // The sums of dQ: cleared, added to by every block of keys, read.
  const double dq = sums("dQ sums", p.heads_q, rows_q(p), dims(p).qk);
  double moved = 3.0 * dq;
  if (choice.splits > 1) {
    const std::int64_t rows = rows_k(p, choice.tile->shape.block_n);
    moved += 3.0 * sums("dK sums", p.heads_k, rows, dims(p).qk);
    moved += 3.0 * sums("dV sums", p.heads_k, rows, dims(p).v);
  }
  cost.bytes_moved = tensor_bytes(p) + 2.0 * operands.bytes() + moved;
  cost.ms = lists.ms() + choice.ms + before_ms(p, operands, machine) +
            others_ms(p, queries, choice.ms, kOnePassProducts, cost) +
            host::options_ms(p, launches(p, 1), machine) + host::kKernelMs +
            1e-6 * 2.5 * dq / machine.bandwidth_gbps + tensors_ms(p, kOnePassShown, machine);
  const int kib = machine.shared_kib;
  return Prepared{
      std::move(cost),
      remember(DecidedOnePass{make_config(p, *choice.tile, Launch::all, choice.splits > 1, kib),
                              *choice.tile, choice.splits,
                              make_config(p, queries, Launch::queries, false, kib)})};
}

/// What run_two_pass() goes by.
struct DecidedTwoPass {
  TilePair pair;
  Parts parts;
  bool split = false;
  Config keys, queries;
  Config whole_queries;  ///< for refine and the gradient of a bias
};

Preparation prepare_two_pass(const KernelRow&, const Problem& p, const Hardware& machine) {
  std::string reason = refusal(p, machine, host::kTakes.most_head_dim);
  if (!reason.empty()) return reason;
  const TwoPass choice = choose_two_pass(p, machine);
  if (choice.pair == nullptr) return no_tile(p, machine);
  const Operands operands(p);
  Cost cost;
  cost.block_m = choice.pair->keys.shape.block_m;
  cost.block_n = choice.pair->keys.shape.block_n;
  cost.splits = choice.splits;
  const ListsInTiles lists(p, choice.pair->keys, choice.pair->queries);
  lists.add_memory(cost.memory);
  operands.add_memory(cost.memory);
  add_row_memory(p, cost.memory);
  cost.bytes_moved = tensor_bytes(p) + 2.0 * operands.bytes();
  const bool split = choice.splits > 1;
  const Parts parts = parts_of(p, *choice.pair, choice.splits);
  if (split) {
    const auto sums = [&](const char* name, int count, std::int64_t heads, std::int64_t rows,
                          int dim) {
      cost.memory.push_back(
          memory_part(name, Role::workspace, DType::float32, {count, p.batch, heads, rows, dim}));
      cost.bytes_moved += 2.0 * static_cast<double>(cost.memory.back().bytes);
    };
    sums("dQ parts", parts.queries, p.heads_q, parts.rows_dq, dims(p).qk);
    sums("dK parts", parts.keys, p.heads_k, parts.rows_k, dims(p).qk);
    sums("dV parts", parts.keys, p.heads_k, parts.rows_k, dims(p).v);
  }
  cost.ms =
      lists.ms() + choice.ms + before_ms(p, operands, machine) +
      others_ms(p, choice.pair->queries, choice.ms, two_pass_products(p, *choice.pair), cost) +
      host::options_ms(p, launches(p, choice.pair->apart ? 3 : 2), machine) +
      tensors_ms(p, kTwoPassShown, machine);
  // Few query rows over many keys wait for memory.
  cost.ms = std::max(cost.ms, 1e-6 * cost.bytes_moved / machine.bandwidth_gbps);
  const int kib = machine.shared_kib;
  const auto& [keys, queries, apart, sliced] = *choice.pair;
  return Prepared{std::move(cost),
                  remember(DecidedTwoPass{*choice.pair, parts, split,
                                          make_config(p, keys, Launch::keys, split, kib),
                                          make_config(p, queries, Launch::queries, split, kib),
                                          make_config(p, queries, Launch::queries, false, kib)})};
}

void fill(Args& args, const Problem& p, const Operands& operands, const RowStatistics& rows) {
  fill_shared(args, p, operands);
  args.d_o = operands[3].view;
  args.do_scale = operands[3].scale;
  args.cols_o = operands[3].cols;
  args.lse2 = rows.lse2;
  args.delta = rows.delta;
  args.lse2_low = rows.lse2_low;
  args.coarse = refines_all(p) ? -1.0F : bwd_sm80::kCoarseUnderBias;
  host::fill_d_lse(args, p);
  args.rows_q = static_cast<int>(rows.rows_q);
  args.dq = host::view4(p.dq);
  args.dk = host::view4(p.dk);
  args.dv = host::view4(p.dv);
  args.dq_vectors = host::has_vectors(p.dq);
  args.dk_vectors = host::has_vectors(p.dk);
  args.dv_vectors = host::has_vectors(p.dv);
  args.head_dim = static_cast<int>(p.head_dim);
}

/// A launch of the pass.
void launch_tiles(const Problem& p, const Kernel& kernel, const Grid& grid, void* stream,
                  const Args& args) {
  p.packed ? launch_expressed(p, kernel, grid, stream, ragged_args(p, args))
           : launch_expressed(p, kernel, grid, stream, args);
}

/// KiB of shared memory on the problem's device.
int limit_kib(const Problem& p) { return host::shared_kib(device_arch(p.device.index)); }

/// dK and dV, with dQ where the config says so: one block for block_n keys of a kv head.
void launch_keys(const Problem& p, const Config& config, const Tile& tile, Args args,
                 const ListsInTiles& lists, int splits, void* stream) {
  if (p.heads_q == 0) {
    return clear_gradients(p, std::array{&p.dk, &p.dv}, stream);
  }
  args.lists = lists.of_keys();
  const std::int64_t heads = p.stored_batch() * p.heads_k;
  const std::int64_t blocks = host::key_blocks(p, tile.shape.block_n);
  const double head_bytes = static_cast<double>(p.total_q * p.group()) *
                            (config.head_dim + config.head_dim_v) *
                            (2.0 * config.form.planes + (config.output.with_dq ? 2.0 : 0.0));
  args.order = {.blocks = static_cast<unsigned>(blocks),
                .splits = static_cast<unsigned>(splits),
                .heads = static_cast<unsigned>(heads),
                .section = host::section(p.has_positional_mask(), heads, blocks, head_bytes,
                                         host::kTypicalMultiprocessors),
                .last_first = false};
  const int min_blocks = tile.min_blocks;
  const Kernel kernel = load_expressed(
      p, config, p.device.index, [min_blocks](const Config& c) { return key_unit(c, min_blocks); });
  const std::int64_t grid = blocks * heads * splits;
  // In one pass with splits the sums were cleared last, which is no kernel.
  const bool cleared = splits > 1 && config.output.with_dq;
  launch_tiles(p, kernel, cleared ? Grid{.x = grid} : host::following(grid, p.device.index), stream,
               args);
}

/// dQ, or with `refine` what rounding took from lse2: one block for block_m queries of a head.
void launch_queries(const Problem& p, const Config& config, const Tile& tile, Args args,
                    bool refine, int splits, void* stream) {
  const std::int64_t heads = p.stored_batch() * p.heads_q;
  const std::int64_t blocks = host::query_blocks(p, tile.shape.block_m);
  const double head_bytes = static_cast<double>(p.total_k) * (config.head_dim + config.head_dim_v) *
                            2.0 * config.form.planes / static_cast<double>(p.group());
  args.order = {.blocks = static_cast<unsigned>(blocks),
                .splits = static_cast<unsigned>(splits),
                .heads = static_cast<unsigned>(heads),
                .section = host::section(p.has_positional_mask(), heads, blocks, head_bytes,
                                         host::kTypicalMultiprocessors),
                .last_first = p.has_positional_mask()};
  const int min_blocks = tile.min_blocks;
  const int device = p.device.index;
  const Kernel kernel =
      refine ? load_expressed(p, config, device,
                              [=](const Config& c) { return refine_unit(c, min_blocks); })
             : load_expressed(p, config, device,
                              [=](const Config& c) { return query_unit(c, min_blocks); });
  launch_tiles(p, kernel, host::following(blocks * heads * splits, p.device.index), stream, args);
}

/// Gradients of what is no operand, from the rows' final statistics. `queries`: of bwd_dq_sm80.
void launch_others(const Problem& p, const Config& queries, int min_blocks,
                   const RowStatistics& rows, const Args& args, WorkspaceCutter& workspace,
                   void* stream) {
  sink_gradient(p, rows, stream);
  bias_gradient(p, args, queries, min_blocks, workspace, stream);
  capture_gradients(p, args, queries, min_blocks, workspace, stream);
}

RowStatistics take_rows(const Problem& p, WorkspaceCutter& workspace) {
  RowStatistics rows;
  rows.rows_q = rows_q(p);
  const std::int64_t count = p.stored_batch() * p.heads_q * rows.rows_q;
  rows.lse2 = workspace.take<float>(count);
  rows.delta = workspace.take<float>(count);
  if (keeps_low(p)) rows.lse2_low = workspace.take<float>(count);
  return rows;
}

void run_one_pass(const KernelRow& /*row*/, const Problem& p, const Context& context) {
  const auto& [config, tile, splits, query_config] = context.decided<DecidedOnePass>();
  const bool split = splits > 1;
  const Tile& queries = two_pass_tiles(p)[0].queries;  // fits every machine
  WorkspaceCutter workspace(context.workspace);
  ListsInTiles lists(p, tile, queries);
  lists.make(workspace, context.stream);
  Operands operands(p);
  operands.prepare(workspace, context.stream);
  RowStatistics rows = take_rows(p, workspace);
  const std::int64_t heads_k = p.batch * p.heads_k, keys = rows_k(p, tile.shape.block_n);
  Args args;
  args.dq_sum = workspace.take<float>(p.stored_batch() * p.heads_q * rows.rows_q * config.head_dim);
  rows.clear = args.dq_sum;
  rows.clear_cols = config.head_dim;
  prepare_rows(p, rows, context.stream);
  fill(args, p, operands, rows);
  args.lists = lists.of_queries();
  if (refines(p)) launch_queries(p, query_config, queries, args, true, 1, context.stream);
  std::vector<SummedGradient> sums = {{args.dq_sum, &p.dq, rows.rows_q, config.head_dim, p.scale}};
  if (split) {
    args.dk_sum = workspace.take<float>(heads_k * keys * config.head_dim);
    args.dv_sum = workspace.take<float>(heads_k * keys * config.head_dim_v);
    args.rows_k = static_cast<int>(keys);
    args.queries_per_split = static_cast<int>(per_split(p.seq_q, tile.shape.block_m, splits));
    fill_bytes(args.dk_sum, 0, heads_k * keys * config.head_dim * 4, p.device.index,
               context.stream);
    fill_bytes(args.dv_sum, 0, heads_k * keys * config.head_dim_v * 4, p.device.index,
               context.stream);
    sums.push_back({args.dk_sum, &p.dk, keys, config.head_dim, p.scale});
    sums.push_back({args.dv_sum, &p.dv, keys, config.head_dim_v, 1.0F});
  }
  launch_keys(p, config, tile, args, lists, splits, context.stream);
  convert_gradients(p, sums, context.stream);
  launch_others(p, query_config, queries.min_blocks, rows, args, workspace, context.stream);
}

/// Places for what each part of the two-pass form adds up, which bwd_convert then adds.
std::vector<SummedGradient> take_parts(const Problem& p, const Parts& parts, Args& args,
                                       WorkspaceCutter& workspace) {
  const std::int64_t pairs_q = p.batch * p.heads_q, pairs_k = p.batch * p.heads_k;
  const auto take = [&](int count, std::int64_t pairs, std::int64_t rows, int dim) {
    return workspace.take<float>(count * pairs * rows * dim);
  };
  args.dq_sum = take(parts.queries, pairs_q, parts.rows_dq, dims(p).qk);
  args.dk_sum = take(parts.keys, pairs_k, parts.rows_k, dims(p).qk);
  args.dv_sum = take(parts.keys, pairs_k, parts.rows_k, dims(p).v);
  args.rows_dq = static_cast<int>(parts.rows_dq);
  args.rows_k = static_cast<int>(parts.rows_k);
  args.queries_per_split = static_cast<int>(parts.queries_per_split);
  args.keys_per_split = static_cast<int>(parts.keys_per_split);
  return {{args.dq_sum, &p.dq, parts.rows_dq, dims(p).qk, p.scale, parts.queries},
          {args.dk_sum, &p.dk, parts.rows_k, dims(p).qk, p.scale, parts.keys},
          {args.dv_sum, &p.dv, parts.rows_k, dims(p).v, 1.0F, parts.keys}};
}

void run_two_pass(const KernelRow& /*row*/, const Problem& p, const Context& context) {
  const auto& [pair, parts, split, key_config, query_config, whole_queries] =
      context.decided<DecidedTwoPass>();
  WorkspaceCutter workspace(context.workspace);
  ListsInTiles lists(p, pair.keys, pair.queries);
  lists.make(workspace, context.stream);
  Operands operands(p);
  operands.prepare(workspace, context.stream);
  const RowStatistics rows = take_rows(p, workspace);
  prepare_rows(p, rows, context.stream);
  Args args;
  fill(args, p, operands, rows);
  args.lists = lists.of_queries();
  if (refines(p)) launch_queries(p, whole_queries, pair.queries, args, true, 1, context.stream);
  std::vector<SummedGradient> sums;
  if (split) sums = take_parts(p, parts, args, workspace);
  for (const Config& config : key_launches(p, pair, key_config)) {
    launch_keys(p, config, pair.keys, from_column(args, config), lists, parts.keys, context.stream);
  }
  for (const Config& config : query_launches(p, pair, query_config)) {
    launch_queries(p, config, pair.queries, from_column(args, config), false, parts.queries,
                   context.stream);
  }
  if (split) convert_gradients(p, sums, context.stream);
  launch_others(p, whole_queries, pair.queries.min_blocks, rows, args, workspace, context.stream);
}

}  // namespace

namespace {

/// What kernels over blocks of queries go by beside another row's passes: tiles that fit every
/// machine, block lists, operands.
struct QueriesApart {
  const Problem& p;
  const Tile& tile = two_pass_tiles(p)[0].queries;
  ListsInTiles lists{p, tile};
  Operands operands{p};

  explicit QueriesApart(const Problem& problem) : p(problem) {}
  void prepare(WorkspaceCutter& workspace, void* stream) {
    lists.make(workspace, stream);
    operands.prepare(workspace, stream);
  }
  void add_memory(std::vector<MemoryPart>& items) const {
    lists.add_memory(items);
    operands.add_memory(items);
  }
  Config config() const { return make_config(p, tile, Launch::queries, false, limit_kib(p)); }
  Args args(const RowStatistics& rows) const {
    Args made;
    fill(made, p, operands, rows);
    made.lists = lists.of_queries();
    return made;
  }
  void refine(const Args& args, void* stream) const {
    launch_queries(p, config(), tile, args, true, 1, stream);
  }
};

}  // namespace

RowStatistics refined_rows(const Problem& p, bool all, WorkspaceCutter& workspace, void* stream) {
  QueriesApart queries(p);
  queries.prepare(workspace, stream);
  const RowStatistics rows = take_rows(p, workspace);
  prepare_rows(p, rows, stream);
  Args args = queries.args(rows);
  args.coarse = all ? -1.0F : bwd_sm80::kCoarseUnderBias;
  queries.refine(args, stream);
  return rows;
}
void add_refined_rows_memory(const Problem& p, std::vector<MemoryPart>& items) {
  QueriesApart(p).add_memory(items);
  add_row_memory(p, items);
}

void bias_gradient_apart(const Problem& p, const RowStatistics& rows, WorkspaceCutter& workspace,
                         void* stream) {
  if (!p.dbias.defined()) return;
  QueriesApart queries(p);
  queries.prepare(workspace, stream);
  bias_gradient(p, queries.args(rows), queries.config(), queries.tile.min_blocks, workspace,
                stream);
}
void add_bias_gradient_memory(const Problem& p, std::vector<MemoryPart>& items) {
  if (!p.dbias.defined()) return;
  const QueriesApart queries(p);
  queries.add_memory(items);
  BiasParts(p, queries.tile.shape.block_m, queries.tile.shape.block_n).add_memory(items);
}

void capture_gradients_apart(const Problem& p, WorkspaceCutter& workspace, void* stream) {
  if (!wants_captures(p)) return;
  QueriesApart queries(p);
  queries.prepare(workspace, stream);
  const RowStatistics rows = take_rows(p, workspace);
  prepare_rows(p, rows, stream);
  const Args args = queries.args(rows);
  if (refines(p)) queries.refine(args, stream);
  capture_gradients(p, args, queries.config(), queries.tile.min_blocks, workspace, stream);
}

const KernelRow kFlashBackwardSm80 = {
    .name = "flash_bwd_sm80",
    .implementation = "flash",
    .device = DeviceType::cuda,
    .pass = Pass::backward,
    .summary = "tiled, P recomputed from LSE, dQ by atomic additions; mma.sync, cp.async",
    .prepare = prepare_one_pass,
    .run = run_one_pass};

const KernelRow kFlashBackwardTwoPassSm80 = {
    .name = "flash_bwd_twopass_sm80",
    .implementation = "flash",
    .device = DeviceType::cuda,
    .pass = Pass::backward,
    .summary = "tiled, dK and dV, then dQ: repeatable; float32 as two fp16 planes",
    .prepare = prepare_two_pass,
    .run = run_two_pass};

}  // namespace tilewise::cuda
