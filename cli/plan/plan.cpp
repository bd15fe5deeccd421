/// tilewise plan: memory, kernel, predicted time and why, before anything runs. Needs no device.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <memory>

#include "cli/bench/grid.h"
#include "cli/bench/seed_memory.h"
#include "cli/machine/machines.h"
#include "cli/plan/plan_advise.h"
#include "cli/plan/plan_against.h"
#include "cli/plan/plan_analyze.h"
#include "cli/plan/plan_report.h"
#include "cli/plan/plan_serve.h"
#include "cli/shell/args.h"
#include "cli/shell/commands.h"
#include "cli/shell/common_flags.h"
#include "cli/shell/failure.h"
#include "cli/shell/output.h"

namespace tilewise::cli {
namespace {

struct PlanFlags {
  GridFlags grid;
  CommonFlags common;
  std::string preset, format, output, hardware, blas_workspace = "8.125MiB";
  std::string layers = "1", weights = "0";
  std::vector<std::string> against, measured;
  bool memory = false, limits = false, analyze = false, advise = false, serve = false;
};

std::string markdown(const PlanFlags& flags, const Grid& grid, const std::vector<Planned>& plans,
                     const Machine& machine, std::int64_t limit_bytes) {
  std::string out;
  if (flags.memory && (flags.preset == "seed-eager" || flags.preset == "seed-fused")) {
    const BlasWorkspaces workspaces{.bytes_each =
                                        parse_bytes("--blas-workspace", flags.blas_workspace)};
    out += seed_memory_markdown(flags.preset, workspaces);
    out += "\nThe same problems here (MiB; peak: with the backward's gradients and workspace)\n\n";
  }
  if (grid.cells.size() == 1) {
    return out + cell_report(grid.cells.front(), plans, machine, limit_bytes);
  }
  const std::vector<std::string> keep = {"problem", "pass", "verdict"};
  std::vector<std::string> constant;
  const Table table = flags.memory ? tensor_table(plans, false)
                                   : overview(plans, machine.hardware, limit_bytes, flags.limits);
  const std::string rows = table.without_constants(keep, constant).markdown();
  for (const std::string& same : constant)
    out += same + (&same == &constant.back() ? "\n\n" : ", ");
  return fmt::format("{}{}\n{} ({}); verdict under {}\n{}\n", out, rows, machine.hardware.name,
                     machine.origin, bytes_text(limit_bytes), origin_of_times(machine));
}

/// Predicted beside measured.
std::string against(const PlanFlags& flags, Format format) {
  std::vector<Compared> rows;
  for (const std::string& path : flags.against) {
    for (Compared& row : compare_with_results(path, flags.hardware)) rows.push_back(row);
  }
  if (rows.empty())
    throw NothingToCompare("--against: expected a row that a Tilewise kernel measured");
  if (format != Format::markdown) return compared_table(rows).text(format);
  Table table = compared_table(rows);
  for (const char* column : {"implementation", "chosen", "model_ms"}) table.drop(column);
  return table.markdown() + "\n" + error_table(rows).markdown();
}

/// The flags' problems by the implementations that the analysis compares, unless some were named.
std::string analysis(GridFlags grid, const Machine& machine, Format format) {
  if (grid.impl.empty() && grid.kernel.empty()) grid.impl = "baseline,flash";
  const Grid made = expand_grid(grid);
  const std::string problem = format_case(made.cells.front().problem);
  for (const Cell& cell : made.cells) {
    if (format_case(cell.problem) != problem) throw BadInput("--analyze: expected one problem");
  }
  return analyze(made.cells, machine, format);
}

int plan(const CLI::App& app, const PlanFlags& flags) {
  const Format format = output_format(flags.format, flags.output);
  check_output(flags.output);
  if (!flags.measured.empty() && !flags.advise) {
    throw BadInput("--measured: expected with --advise");
  }
  if (!flags.against.empty()) {
    write_output(flags.output, against(flags, format));
    return kDone;
  }
  if (flags.serve) {
    const Machine machine = machine_of(flags.hardware, flags.common);
    const Served served{.layers = parse_integer("--layers", flags.layers, 1, 1000),
                        .weight_bytes = parse_bytes("--weights", flags.weights)};
    GridFlags grid = flags.grid;
    if (grid.seq_q.empty()) grid.seq_q = "1";
    if (grid.seq_k.empty()) grid.seq_k = grid.seq;
    write_output(flags.output, serve(expand_grid(grid).cells, served, machine,
                                     memory_limit(flags.common, machine.hardware), format));
    return kDone;
  }
  if (flags.analyze || flags.advise) {
    const Machine machine = machine_of(flags.hardware, flags.common);
    GridFlags grid = flags.grid;
    if (flags.advise && app.count("--seq") == 0) grid.seq = "128:16384:x2";
    if (flags.analyze && app.count("--pass") == 0) grid.pass = "fwd";
    if (flags.analyze && app.count("--seq") == 0) grid.seq = "512";
    write_output(flags.output,
                 flags.analyze ? analysis(grid, machine, format)
                               : advise(expand_grid(grid).cells, machine, flags.measured, format));
    return kDone;
  }
  const Grid grid =
      flags.preset.empty() ? expand_grid(flags.grid) : read_preset(flags.preset, app, false);
  const Machine machine = machine_of(flags.hardware, flags.common);
  const std::int64_t limit_bytes = memory_limit(flags.common, machine.hardware);
  std::vector<Planned> plans;
  for (const Cell& cell : grid.cells) {
    for (Planned& entry : plan_cell(cell, machine.hardware, limit_bytes)) {
      if (grid.cells.size() == 1 && !entry.plan) {
        if (entry.oom) throw OutOfMemory(entry.refusal);
        throw Unsupported(entry.refusal);
      }
      plans.push_back(std::move(entry));
    }
  }
  std::string text;
  if (format == Format::markdown) {
    text = markdown(flags, grid, plans, machine, limit_bytes);
  } else {
    const Table table = flags.memory ? tensor_table(plans, true)
                                     : overview(plans, machine.hardware, limit_bytes, flags.limits);
    text = table.text(format);
  }
  write_output(flags.output, text);
  return kDone;
}

}  // namespace

void add_plan(CLI::App& program, int& exit_code) {
  const auto flags = std::make_shared<PlanFlags>();
  CLI::App* app = program.add_subcommand("plan", "Predict memory, kernel and time; run nothing");
  add_grid_flags(*app, flags->grid, false);
  add_preset_flag(*app, flags->preset,
                  "  tilewise plan --hardware h100 --seq 16384 --heads 16 --dtype bf16 --causal\n"
                  "  tilewise plan --advise --hardware rtx3060");
  app->add_flag("--memory", flags->memory,
                "list the bytes of every tensor; with seed-eager and seed-fused also the seeds' "
                "measurements");
  app->add_flag(
      "--limits", flags->limits,
      "add to tables the largest length, batch and heads that fit, and what would help most");
  app->add_flag("--analyze", flags->analyze,
                "show how memory, accesses and time grow with each size, and seed 002's claims");
  app->add_flag("--advise", flags->advise,
                "show which type and implementation to use at each length");
  app->add_flag("--serve", flags->serve,
                "show a decoding step of --batch sequences with --seq keys each: cache size, "
                "tokens per second, longest context, largest batch");
  app->add_option("--layers", flags->layers, "with --serve: number of layers")
      ->option_text("N [1]");
  app->add_option("--weights", flags->weights, "with --serve: size of the weights")
      ->option_text("SIZE [0]");
  app->add_option("--measured", flags->measured,
                  "with --advise: result files of `bench`; their times replace predictions")
      ->option_text("FILE...");
  app->add_option(
         "--against", flags->against,
         "compare predictions with result files of `bench`, on their machine or --hardware")
      ->option_text("FILE...");
  app->add_option(
         "--blas-workspace", flags->blas_workspace,
         "with --memory: workspace of each of the seeds' two cuBLAS handles (32MiB on Hopper)")
      ->option_text("SIZE [8.125MiB]");
  app->add_option("--hardware", flags->hardware,
                  "machine from cases/hardware.json (rtx3060, rtx4090, a100, h100, h200) or from a "
                  "JSON file; replaces --device")
      ->group("Machine")
      ->option_text("NAME|FILE");
  add_common_flags(*app, flags->common);
  add_output_flags(*app, flags->format, flags->output);
  app->callback([app, flags, &exit_code] { exit_code = plan(*app, *flags); });
}

}  // namespace tilewise::cli
