/// tilewise bench: time and memory of many problems.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "cli/bench/bench_compare.h"
#include "cli/bench/bench_report.h"
#include "cli/bench/best_batch.h"
#include "cli/shell/args.h"
#include "cli/shell/commands.h"
#include "cli/shell/common_flags.h"
#include "cli/shell/failure.h"
#include "cli/shell/output.h"
#include "cli/shell/progress.h"

namespace tilewise::cli {
namespace {

struct BenchFlags {
  GridFlags grid;
  CommonFlags common;
  std::string preset, format, output;
  std::vector<std::string> compare;
  double budget_s = 0.0, total_s = 0.0, bound = 1.05;
  bool check = false, best_batch = false;
};

std::string describe(const Cell& cell) {
  const std::string& name = cell.kernel.empty() ? cell.implementation : cell.kernel;
  return fmt::format("{}  {}", name.empty() ? "flash" : name, format_case(cell.problem));
}

int compare(const BenchFlags& flags, Format format) {
  const Comparison comparison =
      compare_results(flags.compare.front(), flags.compare.back(), flags.bound);
  write_output(flags.output, comparison_text(comparison, format));
  return comparison.slower > 0 ? kCheckFailed : kDone;
}

/// Measures the cells in turn and writes the report of what was finished: of all of them, of those
/// before a Ctrl-C (exit code 130), and of those before an exception, which goes on.
int measure_cells(const Grid& grid, const std::string& output,
                  const std::function<void(const Cell&)>& measure,
                  const std::function<std::string()>& report) {
  std::size_t finished = 0;
  bool stopped = false;
  const LongWork work([&] { write_output(output, report()); },
                      [&] { return fmt::format("{} of {} cells", finished, grid.cells.size()); });
  {
    Progress progress(grid.cells.size());
    for (const Cell& cell : grid.cells) {
      progress.show(describe(cell));
      try {
        measure(cell);
        throw_if_interrupted();
      } catch (const Interrupted&) {
        stopped = true;
        break;
      } catch (...) {
        progress.clear();
        if (finished > 0) work.end(false);
        throw;
      }
      progress.advance();
      ++finished;
    }
  }
  return work.end(stopped);
}

int best_batches(const Grid& grid, const CellRunner::Options& options, const BenchFlags& flags,
                 Format format) {
  Hardware machine = hardware(options.device);
  machine.threads = options.threads;
  CellRunner runner(options);
  std::vector<BatchCurve> curves;
  const auto measure = [&](const Cell& cell) {
    curves.push_back(measure_batches(cell, runner, machine, options.limit_bytes));
  };
  return measure_cells(grid, flags.output, measure, [&] { return batch_report(curves, format); });
}

int time_passes(const Grid& grid, const CellRunner::Options& options, const BenchFlags& flags,
                Format format) {
  CellRunner runner(options);
  std::vector<Measurement> rows;
  const auto measure = [&](const Cell& cell) {
    for (Measurement& row : runner.run(cell)) rows.push_back(std::move(row));
  };
  const int code = measure_cells(grid, flags.output, measure, [&] {
    return bench_report(rows, grid.view, format, read_environment());
  });
  if (code != kDone) return code;
  const bool none = !rows.empty() && std::all_of(rows.begin(), rows.end(), [](const auto& row) {
    return row.status == Status::unsupported;
  });
  if (none) {
    complain(fmt::format("no row ran: {}", rows.front().reason));
    return kUnsupported;
  }
  bool passed = true;
  for (const Measurement& row : rows) {
    if (!row.failed_check) continue;
    complain(row.reason);
    passed = false;
  }
  return passed ? kDone : kCheckFailed;
}

int bench(const CLI::App& app, const BenchFlags& flags) {
  const Format format = output_format(flags.format, flags.output);
  check_output(flags.output);
  if (!flags.compare.empty()) return compare(flags, format);
  const Grid grid =
      flags.preset.empty() ? expand_grid(flags.grid) : read_preset(flags.preset, app, true);
  CellRunner::Options options;
  options.device = parse_device("--device", flags.common.device);
  options.threads = thread_count(flags.common);
  options.limit_bytes = memory_limit(flags.common, hardware(options.device));
  options.budget_s = flags.budget_s;
  options.total_s = flags.total_s;
  options.check = flags.check;
  return flags.best_batch ? best_batches(grid, options, flags, format)
                          : time_passes(grid, options, flags, format);
}

}  // namespace

void add_bench(CLI::App& program, int& exit_code) {
  const auto flags = std::make_shared<BenchFlags>();
  CLI::App* app = program.add_subcommand(
      "bench", "Measure time and memory: latency, TFLOP/s, GB/s, live and peak memory");
  add_grid_flags(*app, flags->grid, true);
  add_preset_flag(*app, flags->preset,
                  "  tilewise bench --seq 512:8192:x2 --heads 16 --dim 128 --dtype bf16 --causal\n"
                  "  tilewise bench --compare old.json new.json");
  add_common_flags(*app, flags->common);
  add_real(*app, "--budget-s", flags->budget_s,
           "seconds per row. Longer rows get fewer runs. The row is a timeout if one run "
           "takes longer",
           0, HUGE_VAL)
      ->option_text("S");
  add_real(*app, "--total-s", flags->total_s,
           "seconds for all rows. Rows not measured by then are timeouts", 0, HUGE_VAL)
      ->option_text("S");
  app->add_flag("--check", flags->check, "also compare each kernel with the reference");
  app->add_flag("--best-batch", flags->best_batch,
                "find the batch size with the best throughput that fits the memory limit, and "
                "print the curve; replaces --batch");
  app->add_option("--compare", flags->compare,
                  "compare two result files instead of measuring. Exit code 1 if a row is slower "
                  "by more than --bound and its noise, takes more memory or no longer runs")
      ->option_text("OLD NEW")
      ->expected(2);
  add_real(*app, "--bound", flags->bound,
           "with --compare: times within this ratio count as unchanged", 1, 100)
      ->option_text("X [1.05]");
  add_output_flags(*app, flags->format, flags->output);
  app->callback([app, flags, &exit_code] { exit_code = bench(*app, *flags); });
}

}  // namespace tilewise::cli
