/// tilewise plan: memory, kernel, predicted time and why, before anything runs. Needs no device.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/args.h"
#include "cli/commands.h"
#include "cli/common_flags.h"
#include "cli/failure.h"
#include "cli/grid.h"
#include "cli/output.h"
#include "cli/pass_plans.h"
#include "cli/seed_memory.h"
#include "measure/materialize.h"

namespace tilewise::cli {
namespace {

struct PlanFlags {
  GridFlags grid;
  CommonFlags common;
  std::string preset, format, output, blas_workspace = "8.125MiB";
  bool memory = false;
};

/// One pass of one cell: its plan, or why there is none.
struct Planned {
  const Cell* cell = nullptr;
  Pass pass = Pass::forward;
  std::optional<Plan> plan;
  std::string refusal;
  bool oom = false;  ///< this pass or the cell's other one needs more memory than there may be
};

std::vector<Planned> plan_all(const Grid& grid, const Hardware& machine, std::int64_t limit_bytes) {
  std::vector<Planned> out;
  for (const Cell& cell : grid.cells) {
    const PlannedCase planned(cell.problem, machine.device);
    const bool both = cell.has(Timed::both);
    const bool with_backward = both || cell.has(Timed::backward);
    const PassPlans plans = plan_passes(
        planned.forward(), with_backward ? &planned.backward() : nullptr, planned.spec(),
        cell.choice(Pass::forward), cell.choice(Pass::backward), machine);
    const bool oom = plans.forward.peak_bytes() > limit_bytes ||
                     (with_backward && plans.backward.peak_bytes() > limit_bytes);
    const auto add = [&](Pass pass, const Plan& plan, const std::string& refusal) {
      out.push_back({&cell, pass, {}, refusal, refusal.empty() && oom});
      if (refusal.empty()) out.back().plan = plan;
    };
    if (both || cell.has(Timed::forward)) add(Pass::forward, plans.forward, plans.forward_refusal);
    if (with_backward) add(Pass::backward, plans.backward, plans.backward_refusal);
  }
  return out;
}

const char* verdict(const Planned& entry) {
  return entry.plan ? (entry.oom ? "oom" : "ok") : "unsupported";
}

Table overview(const std::vector<Planned>& plans) {
  Table table({{"problem"},
               {"implementation"},
               {"pass"},
               {"kernel"},
               {"tiles"},
               {"splits"},
               {"GFLOP"},
               {"GB_moved"},
               {"predicted_ms"},
               {"live_MiB", 1},
               {"peak_MiB", 1},
               {"verdict"}});
  for (const Planned& entry : plans) {
    const std::string problem = format_case(entry.cell->problem);
    const Value pass = pass_name(entry.pass);
    if (!entry.plan) {
      table.add({problem,
                 entry.cell->implementation,
                 pass,
                 entry.cell->kernel,
                 {},
                 {},
                 {},
                 {},
                 {},
                 {},
                 {},
                 verdict(entry)});
      continue;
    }
    const Plan& plan = *entry.plan;
    const Value tiles =
        plan.block_m > 0 ? Value(fmt::format("{}x{}", plan.block_m, plan.block_n)) : Value();
    table.add({problem, plan.implementation, pass, plan.kernel, tiles, plan.splits,
               plan.flops * 1e-9, plan.bytes_moved * 1e-9, plan.predicted_ms,
               mebibytes(plan.live_bytes()), mebibytes(plan.peak_bytes()), verdict(entry)});
  }
  return table;
}

/// A row for each plan and a column for each tensor that one of them holds.
Table tensor_table(const std::vector<Planned>& plans, bool in_bytes) {
  std::vector<std::string> names;
  for (const Planned& entry : plans) {
    if (!entry.plan) continue;
    for (const MemoryItem& item : entry.plan->memory) {
      if (std::find(names.begin(), names.end(), item.name) == names.end()) {
        names.push_back(item.name);
      }
    }
  }
  std::vector<Column> columns = {{"implementation"}, {"pass"}, {"problem"}};
  for (const std::string& name : names) columns.push_back({name, 2});
  columns.insert(columns.end(), {{"live", 2}, {"peak", 2}, {"verdict"}});
  Table table(columns);
  const auto size = [&](std::int64_t bytes) {
    return in_bytes ? Value(bytes) : Value(mebibytes(bytes));
  };
  for (const Planned& entry : plans) {
    if (!entry.plan) continue;
    std::vector<Value> line = {entry.plan->implementation, pass_name(entry.pass),
                               format_case(entry.cell->problem)};
    for (const std::string& name : names) {
      std::int64_t bytes = 0;
      for (const MemoryItem& item : entry.plan->memory) bytes += item.name == name ? item.bytes : 0;
      line.push_back(bytes > 0 ? size(bytes) : Value());
    }
    line.push_back(size(entry.plan->live_bytes()));
    line.push_back(size(entry.plan->peak_bytes()));
    line.push_back(verdict(entry));
    table.add(std::move(line));
  }
  return table;
}

std::string verdict_line(const std::vector<Planned>& plans, std::int64_t limit_bytes) {
  std::int64_t peak_bytes = 0;
  for (const Planned& entry : plans) {
    if (entry.plan) peak_bytes = std::max(peak_bytes, entry.plan->peak_bytes());
  }
  return fmt::format("{} of {} allowed: {}\n", bytes_text(peak_bytes), bytes_text(limit_bytes),
                     peak_bytes > limit_bytes ? "out of memory" : "fits");
}

std::string markdown(const PlanFlags& flags, const std::vector<Planned>& plans,
                     std::int64_t limit_bytes, bool single) {
  std::string out;
  if (flags.memory && (flags.preset == "seed-eager" || flags.preset == "seed-fused")) {
    const BlasWorkspaces workspaces{.bytes_each =
                                        parse_bytes("--blas-workspace", flags.blas_workspace)};
    out += seed_memory_markdown(flags.preset, workspaces);
    out += "\nThe same problems here (MiB; peak: with the backward's gradients and workspace)\n\n";
  }
  if (single) {
    for (const Planned& entry : plans) out += entry.plan ? explain(*entry.plan) + "\n" : "";
    return out + verdict_line(plans, limit_bytes);
  }
  const std::vector<std::string> keep = {"problem", "pass", "verdict"};
  std::vector<std::string> constant;
  const Table table = flags.memory ? tensor_table(plans, false) : overview(plans);
  const std::string rows = table.without_constants(keep, constant).markdown();
  for (const std::string& same : constant)
    out += same + (&same == &constant.back() ? "\n\n" : ", ");
  return fmt::format("{}{}\nverdict under {}\n", out, rows, bytes_text(limit_bytes));
}

int plan(const CLI::App& app, const PlanFlags& flags) {
  const Format format = output_format(flags.format, flags.output);
  check_output(flags.output);
  const Grid grid =
      flags.preset.empty() ? expand_grid(flags.grid) : read_preset(flags.preset, app, false);
  Hardware machine = hardware(parse_device("--device", flags.common.device));
  if (flags.common.threads > 0) machine.threads = flags.common.threads;
  const std::int64_t limit_bytes = memory_limit(flags.common, machine);
  const std::vector<Planned> plans = plan_all(grid, machine, limit_bytes);
  const bool single = grid.cells.size() == 1;
  for (const Planned& entry : plans) {
    if (single && !entry.plan) throw Unsupported(entry.refusal);
  }
  std::string text;
  if (format == Format::markdown) {
    text = markdown(flags, plans, limit_bytes, single);
  } else {
    text = (flags.memory ? tensor_table(plans, true) : overview(plans)).text(format);
  }
  write_output(flags.output, text);
  return kDone;
}

}  // namespace

void add_plan(CLI::App& program, int& exit_code) {
  const auto flags = std::make_shared<PlanFlags>();
  CLI::App* app = program.add_subcommand(
      "plan", "Memory per tensor, chosen kernel and why, predicted time; nothing is run");
  add_grid_flags(*app, flags->grid, false);
  app->add_option("--preset", flags->preset,
                  "a list from cases/presets; other flags given override it")
      ->option_text("NAME");
  app->add_flag("--memory", flags->memory,
                "the bytes of every tensor; with seed-eager and seed-fused also beside what the "
                "seeds measured");
  app->add_option("--blas-workspace", flags->blas_workspace,
                  "of each of the seeds' two cuBLAS handles (on Hopper 32MiB)")
      ->option_text("SIZE [8.125MiB]");
  add_common_flags(*app, flags->common);
  add_output_flags(*app, flags->format, flags->output);
  app->callback([app, flags, &exit_code] { exit_code = plan(*app, *flags); });
}

}  // namespace tilewise::cli
