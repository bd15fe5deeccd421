#include "cuda/kernels/bwd_sm90/row.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cuda/driver/device.h"
#include "cuda/driver/memory.h"
#include "cuda/host/common.h"
#include "cuda/host/constants.h"
#include "cuda/host/expressions.h"
#include "cuda/host/fill.h"
#include "cuda/host/options.h"
#include "cuda/host/sm90_mask.h"
#include "cuda/host/sm90_refusal.h"
#include "cuda/host/tma_maps.h"
#include "cuda/kernels/bwd_sm80/captures.h"
#include "cuda/kernels/bwd_sm80/diagonals.h"
#include "cuda/kernels/bwd_sm80/row.h"
#include "cuda/kernels/bwd_sm80/tiles.h"
#include "cuda/kernels/bwd_sm90/dq/launch.h"
#include "cuda/kernels/bwd_sm90/options.h"
#include "cuda/kernels/bwd_sm90/tiles.h"
#include "cuda/kernels/bwd_sm90/unit.h"
#include "cuda/kernels/bwd_sm90/workspace.h"
#include "cuda/kernels/rows/mask_bits.h"
#include "cuda/kernels/rows/packed_delta.h"
#include "cuda/kernels/rows/score_strip.h"
#include "cuda/kernels/rows/sinks.h"
#include "cuda/kernels/tile_lists/kinds.h"
#include "cuda/kernels/tile_lists/maker.h"
#include "problem/blocks.h"
#include "tilewise/error.h"

namespace tilewise::cuda {
namespace {

using bwd_sm90::Args;
using bwd_sm90::Config;
using bwd_sm90::Lengths;
using bwd_sm90::ListArgs;
using bwd_sm90::RaggedArgs;
using Role = MemoryItem::Role;

/// What the score functions and masks that the caller wrote do not go with here.
std::string function_refusal(const Problem& p) {
  if (!expressions_of(p).any()) return {};
  if (std::max(p.head_dim, p.head_dim_v) > 128) {
    return "a score function or a mask function above head dim 128 is not supported by this kernel";
  }
  if (p.score_function.defined() && host::is_modified(p)) {
    return "a score function beside a softcap, ALiBi or a scale that is not positive is not "
           "supported by this kernel";
  }
  if (p.packed && (bwd_tiles::refines_all(p) || p.deterministic)) {
    return "small packed problems with a score function or a mask function are left to "
           "flash_bwd_sm80";
  }
  if (p.packed && moves_rows_far(p)) {
    return "packed sequences beside a score function that moves whole rows by 65536 or more are "
           "left to flash_bwd_sm80";
  }
  return {};
}

}  // namespace

std::string bwd_sm90_maps_refusal(const Problem& p) {
  using Named = std::pair<const char*, const Tensor*>;
  for (const auto& [name, tensor] : {Named{"q", &p.q}, Named{"k", &p.k}, Named{"v", &p.v},
                                     Named{"o", &p.o}, Named{"dO", &p.d_o}}) {
    std::string reason = sm90_map_refusal(name, *tensor, Sm90Access::read, p.packed);
    if (!reason.empty()) return reason;
  }
  for (const auto& [name, tensor] : {Named{"dq", &p.dq}, Named{"dk", &p.dk}, Named{"dv", &p.dv}}) {
    std::string reason = sm90_map_refusal(name, *tensor, Sm90Access::write, p.packed);
    if (!reason.empty()) return reason;
  }
  return {};
}

std::string bwd_sm90_refusal(const Problem& p, const Hardware& machine) {
  std::string reason = sm90_refusal(p, machine);
  if (reason.empty()) reason = function_refusal(p);
  if (reason.empty()) reason = bwd_sm90_options_refusal(p);
  if (!reason.empty()) return reason;
  if (p.block_list.defined()) {
    // Tiles of keys are not at the same queries at the same time: one waits for another.
    if (p.deterministic) return "block lists with deterministic are left to flash_bwd_twopass_sm80";
    // bwd_packed_delta knows no lists.
    if (p.packed && bwd_tiles::is_tiny(p))
      return "small packed problems beside a block list are left to flash_bwd_sm80";
    if (std::max(p.head_dim, p.head_dim_v) > 128)
      return "block lists above head dim 128 are not supported by this kernel";
    reason = tile_lists_refusal(p);
    if (!reason.empty()) return reason;
  }
  if (p.batch == 0 || p.heads_q == 0 || p.seq_q == 0 || p.seq_k == 0) {
    return "empty problems are left to flash_bwd_sm80";
  }
  if (std::max(p.head_dim, p.head_dim_v) > 128 && bwd_sm90_may_hide_rows(p)) {
    return "rows that may see no key above head dim 128 are not supported by this kernel";
  }
  if (p.packed && std::max(p.total_q, p.total_k) > kMostPackedRows) {
    return "packed tensors of more than " + std::to_string(kMostPackedRows) +
           " rows are not supported by this kernel";
  }
  const Sm90Mask mask = sm90_mask(p);
  // With lengths that the device looks up the kernel itself minds that nothing may be seen.
  const bool hides_all =
      sm90_lengths(p) == Lengths::dense && (mask.low >= p.seq_k || mask.high <= 1 - p.seq_q);
  if (hides_all || mask.low >= mask.high)
    return "a window that hides every key is left to flash_bwd_sm80";
  if (bwd_sm90_jobs(p, bwd_sm90_config(p)) > std::int64_t{1} << 30)
    return "more than 2^30 jobs are not supported by this kernel";
  return bwd_sm90_maps_refusal(p);
}

namespace {

/// Whether rounding of O would show in delta: besides where it does in any row, in a small problem
/// whose mask or list leaves some rows few keys, or where sums over rows are asked for. Sums over
/// the rows of a large one even out.
bool refines(const Problem& p, const Config& config) {
  if (p.precision == Precision::refined || bwd_tiles::is_tiny(p)) return true;
  const bool hides = config.mask != bwd_sm90::Mask::none || config.options.mask || config.listed();
  return config.two_plane && (hides || p.dsinks.defined());
}
/// Gradients of captured tensors that the kernel's sums by i - j give.
DiagonalGradients diagonal_gradients(const Problem& p, const Config& config) {
  std::vector<bool> which;
  if (config.sums.diagonals) which = diagonal_captures(p);
  const auto padded = [](std::int64_t rows, std::int64_t block) {
    return ceil_div(rows, block) * block;
  };
  return {p, std::move(which), padded(p.seq_q, config.shape.chunk_rows),
          padded(p.seq_k, config.shape.block_n)};
}

/// What small kernels make before bwd_sm90 and after it.
struct Beside {
  TileListsMaker lists;
  MaskBitsMaker mask;
  DiagonalGradients diagonals;
  ScoreStrip strip;
  BiasSumsMaker bias;

  Beside(const Problem& p, const Config& config)
      : lists(p, bwd_sm90_wanted_lists(config)),
        mask(p, config.shape.block_m, true),
        diagonals(diagonal_gradients(p, config)),
        strip(p, config.expressions.strip),
        bias(p, config) {}
  void add_memory(std::vector<MemoryPart>& items) const {
    lists.add_memory(items);
    mask.add_memory(items);
    diagonals.add_memory(items);
    strip.add_memory(items);
    bias.add_memory(items);
  }
};

/// What run() goes by.
struct Decided {
  Config config;
  bwd_sm90::SectionOrder order;
  int parts = 1;    ///< that a tile's queries are cut into
  int sharers = 1;  ///< that a key head's query heads are cut into
};

/// Whether delta or the low part of LSE is worked out by a kernel of bwd_sm80.
bool gives_rows(const Problem& p, const Config& config) {
  return config.shifts() || (refines(p, config) && !p.packed);
}
/// Whether other kernels make gradients of captured tensors.
bool captures_apart(const Problem& p, const Beside& beside) {
  return wants_captures(p) && wants_captures(beside.diagonals.others());
}

std::vector<MemoryPart> workspace_items(const Problem& p, const Config& config,
                                        const Beside& beside) {
  std::vector<MemoryPart> items;
  BwdSm90Workspace(p, config).add_memory(items);
  if (refines(p, config) && p.packed) {
    items.push_back(
        memory_part("delta, refined", Role::workspace, DType::float32, {p.heads_q, p.total_q}));
  } else if (gives_rows(p, config)) {
    add_refined_rows_memory(p, items);
  }
  beside.add_memory(items);
  if (captures_apart(p, beside)) {
    add_refined_rows_memory(p, items);
    add_capture_memory(beside.diagonals.others(), items);
  }
  if (!config.sums.bias) add_bias_gradient_memory(p, items);
  return items;
}

double moved_bytes(const Problem& p, const Config& config) {
  const auto bytes = [](const Tensor& t) {
    return t.defined() ? static_cast<double>(t.numel() * dtype_bytes(t.dtype)) : 0.0;
  };
  double moved = bytes(p.d_o);  // it is read twice
  for (const Tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.d_o, &p.lse, &p.dq, &p.dk, &p.dv, &p.d_lse})
    moved += bytes(*t);
  if (!config.large_dim())
    return moved + 3.0 * 4.0 * static_cast<double>(BwdSm90Workspace(p, config).dq_floats());
  for (const Tensor* t : {&p.q, &p.k, &p.v, &p.d_o}) moved += bytes(*t);  // by bwd_dq_sm90
  return moved;
}

double predicted_ms(const Problem& p, const Config& config, const Beside& beside,
                    double bytes_moved, const Hardware& machine) {
  double ms =
      std::max(bwd_sm90_ms(p, config, machine), 1e-6 * bytes_moved / machine.bandwidth_gbps);
  // delta from P by a kernel of its own: 8 x 12 heads of 128 rows, causal, 0.034 ms on an H200,
  // full without it 0.020.
  constexpr double kRefineMs = 0.012;
  if (refines(p, config)) ms += kRefineMs;
  // Two launches that read O and dO, or look at LSE.
  if (config.shifts()) ms += 2.0 * host::kKernelMs;
  // Two products of five, on mma.sync. Not measured.
  if (p.precision == Precision::refined) ms *= 1.8;
  ms += mask_bits_ms(beside.mask, machine.bandwidth_gbps);
  if (p.dsinks.defined()) ms += host::kKernelMs;
  // Two more products of five, on mma.sync.
  if (captures_apart(p, beside)) ms *= 1.8;
  if (beside.diagonals.any()) ms = 1.15 * ms + 3.0 * host::kKernelMs;  // not measured
  if (p.dbias.defined() && !config.sums.bias) ms *= 1.8;
  // Above dim 128 two planes of P and dS were not measured: left to flash_bwd_sm80.
  if (config.two_plane && config.columns_dq() > 128) ms *= 3.0;
  return ms;
}

Preparation prepare(const KernelRow& row, const Problem& p, const Hardware& machine) {
  std::string reason = bwd_sm90_refusal(p, machine);
  const bool passes = row.config != nullptr;
  if (reason.empty() && passes) reason = bwd_sm90_passing_refusal(p);
  if (!reason.empty()) return reason;
  const Config config = passes ? bwd_sm90_passing_config(p) : bwd_sm90_config(p);
  const Beside beside(p, config);
  Cost cost;
  cost.block_m = config.shape.block_m;
  cost.block_n = config.shape.block_n;
  cost.memory = workspace_items(p, config, beside);
  cost.bytes_moved = moved_bytes(p, config);
  cost.ms = predicted_ms(p, config, beside, cost.bytes_moved, machine);
  return Prepared{std::move(cost),
                  remember(Decided{config, bwd_sm90_order(p, config), bwd_sm90_parts(p, config),
                                   bwd_sm90_sharers(p, config)})};
}

/// Rows end where a packed sequence does; those of K and V also at a length, behind which dK and dV
/// are 0.
void fill_maps(RaggedArgs& args, const Problem& p, const Config& config) {
  const auto set_map = [&](tile::TensorMapBytes& to, const Tensor& tensor, int box_rows,
                           std::int64_t ragged_rows) {
    const TensorMapSpec spec = sm90_map_spec(tensor, box_rows, p.packed);
    sm90_set_map(to, ragged_rows > 0 ? sm90_ragged_map(spec, ragged_rows, 1) : spec);
  };
  const std::int64_t q_rows = p.packed ? p.total_q : 0, k_rows = p.packed ? p.total_k : 0;
  set_map(args.q, p.q, config.shape.block_m, q_rows);
  set_map(args.o, p.o, config.shape.block_m, q_rows);
  set_map(args.d_o, p.d_o, config.shape.block_m, q_rows);
  set_map(args.dq, p.dq, config.large_dim() ? 64 : config.shape.chunk_box(), q_rows);
  set_map(args.k, p.k, config.shape.block_n, config.ragged() ? args.of.k_rows : 0);
  set_map(args.v, p.v, config.shape.block_n, config.ragged() ? args.of.k_rows : 0);
  set_map(args.dk, p.dk, 64, k_rows);
  set_map(args.dv, p.dv, 64, k_rows);
}

void fill(RaggedArgs& args, const Problem& p, const Decided& decided) {
  const Config& config = decided.config;
  args.of.top = sm90_mask(p).top;
  host::fill_sm90_lengths(args.of, p);
  fill_maps(args, p, config);
  args.heads_q = static_cast<int>(p.heads_q);
  args.heads_k = static_cast<int>(p.heads_k * decided.sharers);
  args.group = static_cast<int>(p.group() / decided.sharers);
  args.seq_q = static_cast<int>(p.seq_q);
  args.seq_k = static_cast<int>(p.seq_k);
  args.rows_q = static_cast<int>(bwd_sm90_rows(p, config));
  args.jobs = static_cast<int>(bwd_sm90_jobs(p, config));
  args.scale = p.scale;
  args.scale_log2 = static_cast<float>(static_cast<double>(p.scale) * kLog2e);
  args.offset_factor = static_cast<float>(config.fold_lse() ? -1.0 / p.scale : -kLog2e);
  if (p.softcap != 0.0) {
    args.scale_cap = host::finite(p.scale / p.softcap);
    args.cap_log2 = static_cast<float>(p.softcap * kLog2e);
  }
  host::fill_alibi(args, p);
  if (config.hides_rows() || config.picks_rows()) host::fill_sinks(args, p);
  const Sm90Mask mask = sm90_mask(p);
  args.low = mask.low;
  args.high = mask.high;
  args.order = decided.order;
  args.parts = std::max(decided.parts, bwd_sm90_span_blocks(config));
  args.sharers = decided.sharers;
  args.lead = bwd_sm90_sections_apart(args.order, config);
  args.lag = bwd_sm90_lag(p, args.order, config);
  // Under a causal mask the first keys are seen by most queries: longest first. In a fixed order of
  // additions the last keys come first: theirs are the first queries that others wait for.
  args.last_first = config.sums.deterministic && config.mask != bwd_sm90::Mask::none;
  args.lse_in = host::fill_lse(args, p);
}

/// delta from P, and the low part of LSE, where other kernels work them out.
RowStatistics give_rows(Args& args, const Problem& p, const Config& config,
                        WorkspaceCutter& workspace, void* stream) {
  RowStatistics given;
  if (refines(p, config) && p.packed) {
    float* const delta = workspace.take<float>(p.heads_q * p.total_q);
    packed_delta(p, delta, stream);
    args.delta_in = delta;
    args.delta_rows = static_cast<int>(p.total_q);
  } else if (gives_rows(p, config)) {
    given = refined_rows(p, refines(p, config), workspace, stream);
    args.delta_in = given.delta;
    args.delta_rows = static_cast<int>(given.rows_q);
    args.lse2_in = given.lse2;
    args.low_in = given.lse2_low;
  }
  return given;
}

/// The kernel, behind what it reads of lists, mask, functions and bias.
void launch_tiles(const Kernel& kernel, const Problem& p, const Config& config, Beside& beside,
                  ListArgs& args, WorkspaceCutter& workspace, void* stream) {
  beside.lists.take(workspace);
  beside.mask.take(workspace);
  beside.diagonals.take(workspace, stream);
  args.diagonals = beside.diagonals.sums();
  args.diagonal_count = static_cast<int>(beside.diagonals.count());
  args.last_key = static_cast<int>(beside.diagonals.last_key());
  const tile::Strip strip = beside.strip.make(workspace, stream);
  const tile::BiasSums bias_sums = beside.bias.take(workspace, stream);
  beside.mask.make(stream);
  const tile::MaskBits mask = beside.mask.bits();
  const std::int64_t grid = std::min<std::int64_t>(args.jobs, host::kTypicalMultiprocessors);
  if (config.listed()) {
    args.of_queries = beside.lists.of_queries();
    args.of_keys = beside.lists.of_keys();
    beside.lists.make(stream, mask);
    launch_optioned(p, kernel, host::following(grid, p.device.index), stream, args, mask, strip);
  } else if (config.ragged()) {
    launch_optioned<RaggedArgs>(p, kernel, {.x = grid}, stream, args, mask, strip,
                                bwd_sm90_bias_tiles(p, config), bias_sums);
  } else {
    launch_optioned<Args>(p, kernel, {.x = grid}, stream, args, mask, strip,
                          bwd_sm90_bias_tiles(p, config), bias_sums);
  }
}

/// Gradients of what is no operand, from the rows' statistics and the kernel's sums.
void launch_others(const Problem& p, const Config& config, const Beside& beside, const Args& args,
                   const RowStatistics& given, WorkspaceCutter& workspace, void* stream) {
  RowStatistics rows;
  rows.lse2 = args.offset;
  rows.lse2_low = args.offset_low;
  rows.delta = args.delta;
  rows.rows_q = args.rows_q;
  sink_gradient(p, rows, stream, config.fold_lse() ? -args.scale_log2 : -1.0F);
  beside.diagonals.make(stream);
  if (wants_captures(p)) capture_gradients_apart(beside.diagonals.others(), workspace, stream);
  if (config.sums.bias) {
    beside.bias.make_gradient(stream);
  } else {
    bias_gradient_apart(p, given, workspace, stream);
  }
}

void run(const KernelRow& /*row*/, const Problem& p, const Context& context) {
  const auto& decided = context.decided<Decided>();
  const Config& config = decided.config;
  // All kernels before the first launch: where one cannot be compiled nothing is written.
  const Kernel kernel = load_optioned(p, config, p.device.index, bwd_sm90_unit);
  const Kernel queries = config.large_dim() ? load_bwd_dq_sm90(config, p.device.index) : Kernel{};
  const ContextScope scope(p.device.index);  // tensor maps are made in a context
  WorkspaceCutter workspace(context.workspace);
  ListArgs args;
  fill(args, p, decided);
  const BwdSm90Workspace own(p, config);
  own.take(args, workspace);
  const RowStatistics given = give_rows(args, p, config, workspace, context.stream);
  own.clear(args, context.stream);
  Beside beside(p, config);
  launch_tiles(kernel, p, config, beside, args, workspace, context.stream);
  if (config.large_dim())
    launch_bwd_dq_sm90(queries, p, config, args, own.next_tile(args), context.stream);
  launch_others(p, config, beside, args, given, workspace, context.stream);
}

/// Emulated alone.
std::string on_trial(const KernelRow& /*row*/, const Problem& p) {
  const bool large_dim = std::max(p.head_dim, p.head_dim_v) > 128;
  if (large_dim && p.packed && sm90_mask(p).mask != bwd_sm90::Mask::none)
    return "no card has checked its packed sequences under a mask above head dim 128";
  return p.bias.defined() && bwd_tiles::is_small(p) ? "no card has timed a bias of small problems"
                                                    : "";
}

constexpr bool kPasses = true;

}  // namespace

const KernelRow kFlashBackwardPassingSm90 = {
    .name = "flash_bwd_passing_sm90",
    .implementation = "flash",
    .device = DeviceType::cuda,
    .pass = Pass::backward,
    .summary = "flash_bwd_sm90 of lists with blocks of 64 keys, half a tile; wgmma, TMA",
    .prepare = prepare,
    .run = run,
    .config = &kPasses};

const KernelRow kFlashBackwardSm90 = {
    .name = "flash_bwd_sm90",
    .implementation = "flash",
    .device = DeviceType::cuda,
    .pass = Pass::backward,
    .summary = "tiled, P recomputed from LSE; above dim 128 dQ by bwd_dq_sm90; wgmma, TMA",
    .prepare = prepare,
    .run = run,
    .on_trial = on_trial};

}  // namespace tilewise::cuda
