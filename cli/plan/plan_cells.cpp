#include "cli/plan/plan_cells.h"

#include <algorithm>
#include <limits>

#include "cli/plan/pass_plans.h"
#include "harness/materialize.h"
#include "plan/accounting.h"
#include "plan/gpu_facts.h"
#include "problem/blocks.h"
#include "problem/problem.h"

namespace tilewise::cli {
namespace {

/// Peak rate of the units that do a plan's products, TFLOP/s. Exact float32 in tiles on a GPU is
/// three products of 16-bit halves. A CPU's 16-bit units are told by the kernel's name.
double product_tflops(const Plan& plan, const Case& problem, const Hardware& machine) {
  constexpr double kSplitProducts = 3.0;
  if (machine.device.type == DeviceType::cpu) {
    // bf16 relative to float32 in the widest vectors: 1024 to 64 FLOP per clock and core, 2 to 1.
    constexpr double kAmx = 16.0, kAvx512Bf16 = 2.0;
    const double times = plan.kernel.ends_with("_amx")          ? kAmx
                         : plan.kernel.ends_with("_avx512bf16") ? kAvx512Bf16
                                                                : 1.0;
    return times * machine.float32_tflops;
  }
  const double matrix = machine.matrix_tflops / kSustainedMatrix;
  const double float32 = machine.float32_tflops / kSustainedFloat32;
  if (plan.implementation == "baseline") return float32;
  if (problem.dtype != DType::float32 || problem.precision == Precision::tf32) return matrix;
  return plan.implementation == "flash" ? matrix / kSplitProducts : float32;
}

/// Peak rate of memory, GB/s. A CPU's is that of copies, which also read the lines they write.
double peak_gbps(const Hardware& machine) {
  constexpr double kReadOverCopy = 1.5;
  return machine.device.type == DeviceType::cpu ? kReadOverCopy * machine.bandwidth_gbps
                                                : machine.bandwidth_gbps / kSustainedBandwidth;
}

/// FLOPs of entries with the lengths that the case names. A plan for a GPU cannot see them, and
/// counts every entry as the longest.
double least_flops(const Plan& plan, const Case& problem) {
  if (plan.pass != Pass::forward || problem.packed || problem.key_lengths.empty())
    return plan.flops;
  PlannedCase tensors(problem, Device{});
  const Problem host = make_problem(tensors.forward(), tensors.spec(), Purpose::plan);
  return std::min(plan.flops, attention_flops(host));
}

/// Bytes of K and V side by side that lie behind the entries' lengths: no forward reads them.
double unread_bytes(const Plan& plan, const Case& problem) {
  if (plan.pass != Pass::forward || problem.packed || problem.page_size > 0) return 0.0;
  double rows = 0.0;
  for (const std::int64_t length : problem.key_lengths)
    rows += static_cast<double>(problem.seq_k - length);
  return rows * static_cast<double>(problem.heads_k * dtype_bytes(problem.dtype) *
                                    (problem.head_dim + problem.head_dim_v));
}

/// Bytes that cross memory however good the caches are: every tensor and saved matrix once. The
/// share that the last-level cache may still hold counts a fifth.
double least_bytes(const Plan& plan, const Case& problem, const Hardware& machine) {
  constexpr double kCached = 0.2;
  double bytes = -unread_bytes(plan, problem);
  for (const MemoryItem& item : plan.memory) {
    const bool scratch = item.role == MemoryItem::Role::workspace;
    const bool dropped = item.role == MemoryItem::Role::saved && !plan.keeps_saved;
    if (!scratch && !dropped) bytes += static_cast<double>(item.bytes);
  }
  const double cached = std::min(bytes, static_cast<double>(machine.l2_bytes));
  return std::min(bytes - cached + kCached * cached, plan.bytes_moved);
}

/// Share of the machine that a tiled grid gives work to; forms without tiles fill it.
double filled_share(const Plan& plan, const Case& problem, const Hardware& machine) {
  if (plan.block_m <= 0) return 1.0;
  const bool queries = plan.pass == Pass::forward || machine.device.type == DeviceType::cpu;
  const std::int64_t rows = queries ? problem.seq_q : problem.seq_k;
  const std::int64_t heads = queries ? problem.heads_q : problem.heads_k;
  const int block = queries ? plan.block_m : plan.block_n;
  const std::int64_t blocks = ceil_div(rows, block);
  const auto tiles = static_cast<double>(problem.batch * heads * plan.splits * blocks);
  const double units =
      machine.device.type == DeviceType::cpu ? machine.threads : machine.multiprocessors;
  return std::clamp(tiles / std::max(1.0, units), 1.0 / std::max(1.0, units), 1.0);
}

PassPlans plans_of(const Cell& cell, const Hardware& machine) {
  const bool backward = cell.has(Timed::backward) || cell.has(Timed::both);
  PlannedCase tensors(cell.problem, machine.device);
  return plan_passes(tensors.forward(), backward ? &tensors.backward() : nullptr, tensors.spec(),
                     cell.choice(Pass::forward), cell.choice(Pass::backward), machine);
}

}  // namespace

std::string_view Bounds::verdict() const {
  if (launch_ms >= std::max(counted_memory_ms, counted_compute_ms)) return "launch";
  return counted_memory_ms > counted_compute_ms ? "memory" : "compute";
}

double Bounds::least_ms() const { return std::max({launch_ms, memory_ms, compute_ms}); }

Bounds bounds_of(const Plan& plan, const Case& problem, const Hardware& machine) {
  Bounds b;
  const double tflops = std::max(product_tflops(plan, problem, machine), 1e-9);
  const double gbps = std::max(peak_gbps(machine), 1e-9);
  b.filled = filled_share(plan, problem, machine);
  b.launch_ms = 1e-3 * machine.launch_us;
  b.memory_ms = 1e-6 * least_bytes(plan, problem, machine) / gbps;
  b.compute_ms = 1e-9 * least_flops(plan, problem) / (tflops * b.filled);
  const bool gpu = machine.device.type == DeviceType::cuda;
  const bool matrix = gpu && plan.implementation != "baseline" &&
                      (plan.implementation == "flash" || problem.dtype != DType::float32);
  const double sustained = !gpu ? 1.0 : matrix ? kSustainedMatrix : kSustainedFloat32;
  b.counted_memory_ms = 1e-6 * plan.bytes_moved / std::max(machine.bandwidth_gbps, 1e-9);
  b.counted_compute_ms = b.compute_ms / sustained;
  // The plain loops of these come nowhere near the units' rate.
  const bool plain = plan.implementation == "baseline" || plan.implementation == "reference";
  if (plain && !gpu) b.counted_compute_ms = plan.predicted_ms;
  b.intensity = plan.bytes_moved > 0.0 ? plan.flops / plan.bytes_moved : 0.0;
  b.ridge = 1e3 * sustained * tflops / std::max(machine.bandwidth_gbps, 1e-9);
  return b;
}

std::vector<Planned> plan_cell(const Cell& cell, const Hardware& machine,
                               std::int64_t limit_bytes) {
  PassPlans plans;
  bool oom = false;
  try {
    plans = plans_of(cell, machine);
  } catch (const OutOfMemory& error) {
    plans.forward_refusal = plans.backward_refusal = error.what();
    oom = true;
  }
  const bool forward = cell.has(Timed::forward) || cell.has(Timed::both);
  const bool backward = cell.has(Timed::backward) || cell.has(Timed::both);
  const bool beyond = plans.forward.peak_bytes() > limit_bytes ||
                      (backward && plans.backward.peak_bytes() > limit_bytes);
  std::vector<Planned> out;
  const auto add = [&](Pass pass, const Plan& plan, const std::string& refusal) {
    out.push_back({cell, pass, {}, refusal, {}, oom || (refusal.empty() && beyond)});
    if (!refusal.empty()) return;
    out.back().plan = plan;
    out.back().bounds = bounds_of(plan, cell.problem, machine);
  };
  if (forward) add(Pass::forward, plans.forward, plans.forward_refusal);
  if (backward) add(Pass::backward, plans.backward, plans.backward_refusal);
  return out;
}

std::optional<std::int64_t> peak_bytes(const Cell& cell, const Hardware& machine) {
  const PassPlans plans = plans_of(cell, machine);
  if (!plans.forward_refusal.empty() || !plans.backward_refusal.empty()) return std::nullopt;
  return std::max(plans.forward.peak_bytes(), plans.backward.peak_bytes());
}

std::optional<double> predicted_ms(const Cell& cell, const Hardware& machine) {
  double ms = 0.0;
  for (const Planned& entry : plan_cell(cell, machine, std::numeric_limits<std::int64_t>::max())) {
    if (!entry.plan) return std::nullopt;
    ms += entry.plan->predicted_ms;
  }
  return ms;
}

}  // namespace tilewise::cli
