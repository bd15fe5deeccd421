#include "cuda/kernels/bwd_short_sm90/row.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "cuda/driver/device.h"
#include "cuda/host/common.h"
#include "cuda/host/constants.h"
#include "cuda/host/expressions.h"
#include "cuda/host/fill.h"
#include "cuda/host/options.h"
#include "cuda/host/sm90_mask.h"
#include "cuda/host/sm90_refusal.h"
#include "cuda/host/tile_counter.h"
#include "cuda/host/tma_maps.h"
#include "cuda/host/wgmma_text.h"
#include "cuda/jit/config_text.h"
#include "cuda/kernels/bwd_sm80/tiles.h"
#include "cuda/kernels/bwd_sm90/row.h"
#include "cuda/kernels/bwd_sm90/tiles.h"
#include "plan/accounting.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using bwd_short_sm90::Args;
using bwd_short_sm90::Config;
using bwd_short_sm90::kBlock;
using bwd_short_sm90::kMostRows;
using bwd_short_sm90::kMostRowsOfHalves;
using bwd_short_sm90::kRows;
using bwd_short_sm90::Lengths;
using bwd_short_sm90::Mask;

std::string option_refusal(const Problem& p) {
  if (std::max(p.head_dim, p.head_dim_v) > 128)
    return "a head dim above 128 is not supported by this kernel";
  if (p.head_dim_v % 8 != 0)
    return "values whose head dim is not a multiple of 8 are not supported by this kernel";
  if (host::is_modified(p) || p.bias.defined())
    return "a softcap, ALiBi, bias or a scale that is not positive is not supported by this kernel";
  if (p.block_list.defined() || expressions_of(p).any() || p.mask.defined() || drops(p))
    return "block lists, functions, bool masks and dropout are not supported by this kernel";
  if (p.precision == Precision::refined)
    return "refined gradients are not supported by this kernel";
  if (p.dsinks.defined()) return "the gradient of sinks is not supported by this kernel";
  // A row that saw its sink alone would have to be told from the others.
  if (p.sinks.defined() && p.packed)
    return "sinks of packed sequences are not supported by this kernel";
  if (p.key_lengths.defined()) return "key lengths are not supported by this kernel";
  return {};
}

/// Query rows of a job's heads, as statistics count them.
std::int64_t job_rows(const Problem& p) { return p.group() * round_up(p.seq_q, kRows); }

std::string refusal(const Problem& p, const Hardware& machine) {
  std::string reason = sm90_refusal(p, machine);
  if (reason.empty()) reason = option_refusal(p);
  if (!reason.empty()) return reason;
  if (p.batch == 0 || p.heads_q == 0 || p.seq_q == 0 || p.seq_k == 0)
    return "an empty problem is not supported by this kernel";
  if (job_rows(p) > kMostRows) {
    return "more than " + std::to_string(kMostRows) +
           " query rows to a key head are not supported by this kernel";
  }
  if (p.packed && std::max(p.total_q, p.total_k) > kMostPackedRows)
    return "packed tensors of more than " + std::to_string(kMostPackedRows) +
           " rows are not supported by this kernel";
  const Sm90Mask mask = sm90_mask(p);
  const bool hides_all = !p.packed && (mask.low >= p.seq_k || mask.high <= 1 - p.seq_q);
  if (bwd_sm90_hides_rows(p) || hides_all || mask.low >= mask.high)
    return "a mask that leaves rows no key is not supported by this kernel";
  if (bwd_short_sm90_jobs(p, ShortJobs::passes) >= std::int64_t{1} << tile::TileCounter::kCountBits)
    return "more than 2^24 jobs are not supported by this kernel";
  return bwd_sm90_maps_refusal(p);
}

std::int64_t key_heads(const Problem& p) { return (p.packed ? p.batch + 1 : p.batch) * p.heads_k; }

/// Passes over one side, `rows` of whose heads there are in all.
double passes(const Problem& p, std::int64_t rows, std::int64_t heads) {
  const double blocks =
      p.packed ? static_cast<double>(rows) / kBlock + 0.5 * static_cast<double>(p.batch)
               : static_cast<double>(p.batch * ceil_div(rows, kBlock));
  return blocks * static_cast<double>(heads);
}

/// Where the sums of small problems show rounding: of P and dS, and of O in delta.
bool refines(const Problem& p) {
  return bwd_tiles::is_tiny(p) || (bwd_tiles::is_small(p) && sm90_mask(p).mask != Mask::none);
}

/// Few jobs of key heads that cannot be cut into passes. The sums of a group stay in the L2 cache.
bool may_share(const Problem& p) {
  return !p.packed && p.group() > 1 && refines(p) &&
         bwd_short_sm90_jobs(p, ShortJobs::query_heads) <=
             2 * std::int64_t{host::kTypicalMultiprocessors};
}

/// What run() goes by.
struct Decided {
  ShortJobs jobs = ShortJobs::key_heads;
  Config config;
};

Decided decide(const Problem& p, const Hardware& machine) {
  ShortJobs best = ShortJobs::key_heads;
  const auto consider = [&](ShortJobs jobs) {
    if (bwd_short_sm90_ms(p, jobs, machine) < bwd_short_sm90_ms(p, best, machine)) best = jobs;
  };
  if (!p.packed && !refines(p)) consider(ShortJobs::passes);
  if (may_share(p)) consider(ShortJobs::query_heads);
  return {best, bwd_short_sm90_config(p, best)};
}

bool counts(const Problem& p, const Decided& decided) {
  return bwd_short_sm90_jobs(p, decided.jobs) > host::kTypicalMultiprocessors;
}

/// Warpgroups' passes over keys, whose sums the query heads of a group hand over.
std::int64_t shared_passes(const Problem& p) {
  return 2 * p.batch * p.heads_k * ceil_div(p.seq_k, kBlock);
}
/// Floats of what they hand over.
std::int64_t shared_floats(const Problem& p, const Config& config) {
  return shared_passes(p) * p.group() * kRows * (config.head_dim + config.head_dim_v);
}

Preparation prepare(const KernelRow& /*row*/, const Problem& p, const Hardware& machine) {
  std::string reason = refusal(p, machine);
  if (!reason.empty()) return reason;
  const Decided decided = decide(p, machine);
  Cost cost;
  cost.block_m = cost.block_n = kBlock;
  if (counts(p, decided)) cost.memory.push_back(host::tile_counter_memory());
  if (decided.config.shares) {
    cost.memory.push_back(memory_part("group counters", MemoryItem::Role::workspace, DType::int64,
                                      {shared_passes(p)}));
    cost.memory.push_back(memory_part("dK, dV of query heads", MemoryItem::Role::workspace,
                                      DType::float32, {shared_floats(p, decided.config)}));
    cost.bytes_moved += 2.0 * static_cast<double>(cost.memory.back().bytes);
  }
  for (const Tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.d_o, &p.lse, &p.dq, &p.dk, &p.dv, &p.d_lse}) {
    if (t->defined()) cost.bytes_moved += static_cast<double>(t->numel() * dtype_bytes(t->dtype));
  }
  cost.ms = std::max(bwd_short_sm90_ms(p, decided.jobs, machine),
                     1e-6 * cost.bytes_moved / machine.bandwidth_gbps);
  return Prepared{std::move(cost), remember(decided)};
}

bwd_short_sm90::Rows rows_of(const Tensor& t) {
  return {t.data, t.strides[0], t.strides[1], t.strides[2]};
}

void fill(Args& args, const Problem& p) {
  const auto set_map = [&](tile::TensorMapBytes& to, const Tensor& tensor, std::int64_t rows) {
    const TensorMapSpec spec = sm90_map_spec(tensor, kRows, p.packed);
    sm90_set_map(to, p.packed ? sm90_ragged_map(spec, rows, 1) : spec);
  };
  set_map(args.q, p.q, p.total_q);
  set_map(args.d_o, p.d_o, p.total_q);
  set_map(args.dq, p.dq, p.total_q);
  set_map(args.k, p.k, p.total_k);
  set_map(args.v, p.v, p.total_k);
  set_map(args.dk, p.dk, p.total_k);
  set_map(args.dv, p.dv, p.total_k);
  args.o_rows = rows_of(p.o);
  args.d_o_rows = rows_of(p.d_o);
  args.head_dim_v = static_cast<int>(p.head_dim_v);
  args.heads_q = static_cast<int>(p.heads_q);
  args.heads_k = static_cast<int>(p.heads_k);
  args.group = static_cast<int>(p.group());
  args.seq_q = static_cast<int>(p.seq_q);
  args.seq_k = static_cast<int>(p.seq_k);
  args.batch = static_cast<int>(p.batch);
  args.scale = p.scale;
  args.scale_log2 = static_cast<float>(static_cast<double>(p.scale) * kLog2e);
  const Sm90Mask mask = sm90_mask(p);
  args.low = mask.low;
  args.high = mask.high;
  args.top = mask.top;
  args.lse = host::fill_lse(args, p);
  if (!p.packed) return;
  host::fill_offsets(args.cu_q, p.cu_seqlens_q);
  host::fill_offsets(args.cu_k, p.cu_seqlens_k);
  args.q_rows = static_cast<int>(p.total_q);
  args.k_rows = static_cast<int>(p.total_k);
}

void run(const KernelRow& /*row*/, const Problem& p, const Context& context) {
  const auto& decided = context.decided<Decided>();
  const Kernel kernel = host::load_config(decided.config, p.device.index, bwd_short_sm90_unit);
  const ContextScope scope(p.device.index);  // tensor maps are made in a context
  WorkspaceCutter workspace(context.workspace);
  Args args;
  fill(args, p);
  args.jobs = static_cast<int>(bwd_short_sm90_jobs(p, decided.jobs));
  if (counts(p, decided)) args.counter = host::take_tile_counter(workspace);
  if (decided.config.shares) {
    args.sharers = args.group;
    args.heads_k = args.heads_q;
    args.group = 1;
    args.sharers_done = host::take_tile_counter(workspace, shared_passes(p));
    args.parts = workspace.take<float>(shared_floats(p, decided.config));
  }
  const std::int64_t grid = std::min<std::int64_t>(args.jobs, host::kTypicalMultiprocessors);
  launch(kernel, {.x = grid}, context.stream, args);
}

}  // namespace

Config bwd_short_sm90_config(const Problem& p, ShortJobs jobs) {
  Config config;
  config.element = p.dtype == DType::bfloat16 ? tile::Element::bf16 : tile::Element::fp16;
  config.head_dim = bwd_sm90_padded(p.head_dim);
  config.head_dim_v = bwd_sm90_padded(p.head_dim_v);
  config.mask = sm90_mask(p).mask;
  config.lengths = p.packed ? Lengths::packed : Lengths::dense;
  config.cut = jobs == ShortJobs::passes;
  config.shares = jobs == ShortJobs::query_heads;
  config.two_plane = bwd_tiles::is_small(p);
  config.refined = refines(p);
  const bool one_job = bwd_short_sm90_jobs(p, jobs) <= host::kTypicalMultiprocessors;
  config.helped = !config.refined && one_job;
  config = bwd_short_sm90::with_stages(config);
  // The next pass's rows should be there when it begins. Dense jobs of a key head took longer
  // with halves (b64 h16 s256 d128: 1.21 ms instead of 0.73).
  const std::int64_t rows = job_rows(p) / (config.shares ? p.group() : 1);
  if (config.kept == 1 && config.fetches() && rows <= kMostRowsOfHalves)
    config = bwd_short_sm90::with_halves(config);
  return config;
}

std::int64_t bwd_short_sm90_jobs(const Problem& p, ShortJobs jobs) {
  if (jobs == ShortJobs::key_heads) return key_heads(p);
  if (jobs == ShortJobs::query_heads) return p.batch * p.heads_q;
  return p.batch * (p.heads_k * ceil_div(p.seq_k, kBlock) + p.heads_q * ceil_div(p.seq_q, kBlock));
}

double bwd_short_sm90_ms(const Problem& p, ShortJobs of, const Hardware& machine) {
  const double sms = std::max(1, machine.multiprocessors);
  const bool narrow = std::max(p.head_dim, p.head_dim_v) <= 64;
  // 128 rows of a pass and 64 that pass by take four products over keys, three over queries.
  const double planes = bwd_tiles::is_small(p) ? 1.5 : 1.0, sweeps = refines(p) ? 1.3 : 1.0;
  const double key_us = (narrow ? 0.95 : p.packed ? 1.9 : 2.4) * planes;
  const double query_us = (narrow ? 0.7 : p.packed ? 1.6 : 1.8) * planes * sweeps;
  const double pass_us = narrow ? 2.4 : p.packed ? 2.0 : 2.8;
  constexpr double kStartUs = 8.0;
  // Steps of a pass that are seen in part.
  const double cut_steps = !p.has_positional_mask() ? 0.25 : narrow ? 1.0 : 1.5;
  const double pairs = visible_pairs(p), group = static_cast<double>(p.group());
  const double over_queries = passes(p, p.packed ? p.total_q : p.seq_q, p.heads_q);
  const double over_keys = passes(p, p.packed ? p.total_k : p.seq_k, p.heads_k);
  // Without a mask a pass takes whole blocks of 64 rows.
  const bool whole = !p.has_positional_mask() && !p.packed;
  const auto steps = [&](double passes, std::int64_t rows) {
    return whole ? static_cast<double>(ceil_div(rows, kRows)) : pairs / (passes * kBlock * kRows);
  };
  const double of_queries = pass_us + query_us * (steps(over_queries, p.seq_k) + cut_steps);
  const double of_keys =
      pass_us + key_us * (steps(over_keys, p.seq_q * p.group()) + cut_steps * group);
  // Jobs that follow one another have no helpers (an H200: 768 heads of 197 rows, dim 64, took
  // 1.6 times as long). Measured without a mask at dim 64 only.
  const double jobs = static_cast<double>(p.batch * p.heads_k);
  const double alone = whole && narrow && jobs > sms ? 1.6 : 1.0;
  const double total = alone * (over_queries * of_queries + over_keys * of_keys);
  if (of == ShortJobs::passes) {
    // A pass over keys waits for the statistics of all its queries; under a mask one is twice as
    // long as the mean.
    const double statistics = 4e-3 * group * static_cast<double>(p.seq_q) * (narrow ? 1.0 : 2.0);
    const double longest = (p.has_positional_mask() ? 2.0 : 1.0) * std::max(of_queries, of_keys);
    return 1e-3 * (kStartUs + statistics + std::max(total / sms + 0.5 * of_keys, longest));
  }
  const double waves = p.packed ? jobs / sms + 0.3 : std::ceil(jobs / sms);
  const double all_us = kStartUs + std::max(waves, 1.0) * total / jobs;
  if (of == ShortJobs::key_heads) return 1e-3 * all_us;
  // Each head passes over the keys for itself; the last of a group adds up.
  const double heads = jobs * group, head_waves = std::ceil(heads / sms);
  const double exchange_us = 1.0 + 1.0 * group;
  const double again_us = over_keys * (group - 1.0) * pass_us;
  return 1e-3 * (kStartUs + head_waves * ((total + again_us) / heads + exchange_us));
}

KernelUnit bwd_short_sm90_unit(const Config& c) {
  KernelUnit unit;
  unit.stem = "bwd_short_sm90";
  unit.file = "bwd_short_sm90/kernel";
  unit.config = element_text(c.element) + number_text("head_dim", c.head_dim) +
                number_text("head_dim_v", c.head_dim_v) + number_text("kept", c.kept) +
                number_text("stages", c.stages) +
                (c.halves() ? number_text("stages_v", c.stages_v) : "") +
                enum_text("mask", "Mask", c.mask) + enum_text("lengths", "Lengths", c.lengths) +
                flag_text("cut", c.cut) + flag_text("helped", c.helped) +
                flag_text("two_plane", c.two_plane) + flag_text("refined", c.refined) +
                (c.shares ? flag_text("shares", true) : "");
  unit.threads = bwd_short_sm90::kThreads;
  unit.shared_bytes = bwd_short_sm90::SharedPlan(c).bytes;
  std::map<int, WgmmaShape> shapes;  // by N
  shapes[kRows].operands_in_shared = true;
  for (const int columns : {c.head_dim, c.head_dim_v}) shapes[columns].operand_in_registers = true;
  unit.prelude = "#include \"cuda/tile/hopper/wgmma.cuh\"\n";
  for (auto& [n, shape] : shapes) {
    shape.n = n;
    unit.prelude += wgmma_text(c.element, shape);
  }
  return unit;
}

const KernelRow kFlashBackwardShortSm90 = {
    .name = "flash_bwd_short_sm90",
    .implementation = "flash",
    .device = DeviceType::cuda,
    .pass = Pass::backward,
    .summary = "short sequences in one launch, no sums in memory; head dims to 128; wgmma, TMA",
    .prepare = prepare,
    .run = run};

void add_bwd_short_sm90_units(std::vector<PackUnit>& units, int arch, bool two_plane) {
  if (arch != 90) return;
  for (const int dim : {64, 128}) {
    Config config;
    config.head_dim = config.head_dim_v = dim;
    config.mask = Mask::right;
    config.two_plane = config.refined = two_plane;
    config.lengths = two_plane ? Lengths::dense : Lengths::packed;
    config = bwd_short_sm90::with_stages(config);
    if (config.kept == 1) config = bwd_short_sm90::with_halves(config);
    units.push_back({.unit = bwd_short_sm90_unit(config),
                     .row = kFlashBackwardShortSm90.name,
                     .instruction = "wgmma.mma_async",
                     .allowed_spill_bytes = 160});
  }
}

}  // namespace tilewise::cuda
