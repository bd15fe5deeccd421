#include "cuda/kernels/textbook/baseline.h"

#include "cuda/jit/kernel.h"
#include "cuda/kernels/textbook/baseline_args.h"
#include "cuda/kernels/textbook/textbook.h"
#include "plan/accounting.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using Role = MemoryItem::Role;

/// Share of the float32 rate that its products reach: every operand comes from a cache, none from a
/// register.
constexpr double kProductEfficiency = 0.0126;

KernelUnit unit(const char* entry, DType dtype) {
  return {.stem = "baseline",
          .file = "textbook/baseline",
          .config = storage_config(dtype),
          .threads = textbook::kThreads,
          .entry = entry};
}

Preparation prepare(const KernelRow&, const Problem& p, const Hardware& machine) {
  std::string reason = textbook_refusal(p);
  if (!reason.empty()) return reason;
  Cost cost;
  cost.memory = {
      memory_part("S", Role::workspace, DType::float32, {p.batch, p.heads_q, p.seq_q, p.seq_k}),
      memory_part("row maximum", Role::workspace, DType::float32, {p.batch, p.heads_q, p.seq_q}),
      memory_part("row sum", Role::workspace, DType::float32, {p.batch, p.heads_q, p.seq_q})};
  const auto scores = static_cast<double>(score_rows(p)) * static_cast<double>(p.seq_k);
  // S: written, read by max, read and written twice by softmax, read for O.
  constexpr double kWalks = 7.0;
  cost.bytes_moved = kWalks * 4.0 * scores;
  const double flops = 2.0 * scores * static_cast<double>(p.head_dim + p.head_dim_v);
  // A lane reads a row of K of its own: two or more rows that share a line of 128 bytes take 0.6 of
  // the time (measured at dim 16).
  const double lines = p.head_dim * dtype_bytes(p.dtype) <= 64 ? 0.6 : 1.0;
  cost.ms = 1e-6 * cost.bytes_moved / machine.bandwidth_gbps +
            1e-9 * lines * flops / (kProductEfficiency * machine.float32_tflops) +
            5e-3 * machine.launch_us;
  return Prepared{std::move(cost), nullptr};
}

void run(const KernelRow&, const Problem& p, const Context& context) {
  const int device = p.device.index;
  const std::int64_t rows = score_rows(p);
  WorkspaceCutter workspace(context.workspace);
  baseline::Args args;
  args.q = view4(p.q);
  args.k = view4(p.k);
  args.v = view4(p.v);
  args.o = view4(p.o);
  args.s = workspace.take<float>(rows * p.seq_k);
  args.maximum = workspace.take<float>(rows);
  args.sum = workspace.take<float>(rows);
  args.lse = row_view(p.lse);
  args.rule = logit_rule(p);
  args.group = static_cast<int>(p.group());
  args.head_dim = static_cast<int>(p.head_dim);
  args.head_dim_v = static_cast<int>(p.head_dim_v);
  args.rows = rows;

  const auto step = [&](const char* entry, std::int64_t blocks) {
    launch(load(unit(entry, p.dtype), device), {.x = blocks}, context.stream, args);
  };
  step("scores", ceil_div(rows * p.seq_k, textbook::kThreads));
  step("row_max", rows);
  step("exponentials", rows);
  step("normalise", rows);
  step("output", ceil_div(rows * p.head_dim_v, textbook::kThreads));
}

}  // namespace

const KernelRow kBaselineForward = {.name = "baseline_fwd_cuda",
                                    .implementation = "baseline",
                                    .device = DeviceType::cuda,
                                    .pass = Pass::forward,
                                    .summary = "five plain kernels around an S x S buffer",
                                    .prepare = prepare,
                                    .run = run};

void add_baseline_units(std::vector<PackUnit>& units) {
  units.push_back({.unit = unit("scores", DType::float32), .row = kBaselineForward.name});
}

}  // namespace tilewise::cuda
