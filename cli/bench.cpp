/// tilewise bench: time and memory of many problems.
#include <fmt/format.h>

#include <memory>

#include "cli/args.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/common_flags.h"
#include "cli/failure.h"
#include "cli/output.h"
#include "cli/progress.h"

namespace tilewise::cli {
namespace {

struct BenchFlags {
  GridFlags grid;
  CommonFlags common;
  std::string preset, format, output;
  double budget_s = 0.0, total_s = 0.0;
  bool check = false;
};

std::string describe(const Cell& cell) {
  const std::string& name = cell.kernel.empty() ? cell.implementation : cell.kernel;
  return fmt::format("{}  {}", name.empty() ? "flash" : name, format_case(cell.problem));
}

int bench(const CLI::App& app, const BenchFlags& flags) {
  const Format format = output_format(flags.format, flags.output);
  check_output(flags.output);
  const Grid grid =
      flags.preset.empty() ? expand_grid(flags.grid) : read_preset(flags.preset, app, true);
  CellRunner::Options options;
  options.device = parse_device("--device", flags.common.device);
  options.threads = thread_count(flags.common);
  options.limit_bytes = memory_limit(flags.common, hardware(options.device));
  options.budget_s = flags.budget_s;
  options.total_s = flags.total_s;
  options.check = flags.check;
  CellRunner runner(options);

  catch_interrupts();
  std::vector<Measurement> rows;
  std::size_t finished = 0;
  bool stopped = false;
  {
    Progress progress(grid.cells.size());
    for (const Cell& cell : grid.cells) {
      progress.show(describe(cell));
      try {
        for (Measurement& row : runner.run(cell)) rows.push_back(std::move(row));
        throw_if_interrupted();
      } catch (const Interrupted&) {
        stopped = true;
        break;
      } catch (...) {  // what was measured before is kept
        progress.clear();
        if (!rows.empty()) {
          write_output(flags.output, bench_report(rows, grid.view, format, read_environment()));
        }
        throw;
      }
      progress.advance();
      ++finished;
    }
  }
  write_output(flags.output, bench_report(rows, grid.view, format, read_environment()));
  if (stopped) {
    fmt::print(stderr, "tilewise: interrupted: {} of {} cells were measured\n", finished,
               grid.cells.size());
    return kInterrupted;
  }
  int code = kDone;
  for (const Measurement& row : rows) {
    if (!row.failed_check) continue;
    fmt::print(stderr, "tilewise: {}\n", row.reason);
    code = kCheckFailed;
  }
  return code;
}

}  // namespace

void add_bench(CLI::App& program, int& exit_code) {
  const auto flags = std::make_shared<BenchFlags>();
  CLI::App* app = program.add_subcommand(
      "bench", "Tables of time and memory: latency, TFLOP/s, GB/s, live and peak memory");
  add_grid_flags(*app, flags->grid, true);
  app->add_option("--preset", flags->preset,
                  "a list from cases/presets; other flags given override it")
      ->option_text("NAME");
  add_common_flags(*app, flags->common);
  app->add_option(
         "--budget-s", flags->budget_s,
         "seconds for each row: fewer runs when they do not fit, and timeout when a single "
         "run takes longer")
      ->option_text("S")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--total-s", flags->total_s,
                  "seconds for all rows: those that have not been measured by then are timeouts")
      ->option_text("S")
      ->check(CLI::NonNegativeNumber);
  app->add_flag("--check", flags->check,
                "also compare each kernel with the reference on the problem");
  add_output_flags(*app, flags->format, flags->output);
  app->footer([] { return fmt::format("Presets: {}", fmt::join(preset_names(), ", ")); });
  app->callback([app, flags, &exit_code] { exit_code = bench(*app, *flags); });
}

}  // namespace tilewise::cli
