/// tilewise tune: measures the kernels' forms on the device at hand and keeps the fastest.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <array>
#include <cmath>
#include <exception>
#include <filesystem>
#include <memory>
#include <set>
#include <span>

#include "api/machine.h"
#include "cli/files/error.h"
#include "cli/files/output.h"
#include "cli/shell/args.h"
#include "cli/shell/commands.h"
#include "cli/shell/common_flags.h"
#include "cli/shell/failure.h"
#include "cli/shell/output.h"
#include "cli/shell/progress.h"
#include "cli/shell/table.h"
#include "cli/tune/tuner.h"

namespace tilewise::cli {
namespace {

struct TuneFlags {
  GridFlags grid;
  CommonFlags common;
  std::string preset, format, output;
  double seconds = 60.0;
};

std::string form_text(const std::string& kernel, const Form& form, const Device& device) {
  std::string text = fmt::format("{} {} x {}", kernel, form.block_m, form.block_n);
  if (form.splits > 1) text += fmt::format(", {} parts", form.splits);
  if (device.type == DeviceType::cpu) text += fmt::format(", {} threads", form.threads);
  return text;
}

std::string report(const std::vector<TunedPass>& passes, const Device& device, Format format) {
  Table table({{"problem"},
               {"pass"},
               {"fastest"},
               {"ms", 4},
               {"model"},
               {"model_ms", 4},
               {"gain", 2},
               {"measured"}});
  for (const TunedPass& pass : passes) {
    const bool done = pass.reason.empty();
    const Winner& w = pass.winner;
    table.add({format_case(pass.problem), std::string(pass_name(pass.pass)),
               done ? form_text(w.kernel, w.form, device) : pass.reason,
               done ? Value(w.ms) : Value(),
               done ? form_text(pass.model_kernel, pass.model_form, device) : "",
               done ? Value(w.model_ms) : Value(), done ? Value(w.model_ms / w.ms) : Value(),
               fmt::format("{} of {}", pass.measured, pass.forms)});
  }
  return table.text(format);
}

/// Implementations of a grid do not matter here: a problem once.
std::vector<Cell> problems(const Grid& grid) {
  std::vector<Cell> cells;
  std::set<std::string> known;
  for (const Cell& cell : grid.cells) {
    if (!cell.implementation.empty() && cell.implementation != "flash") continue;
    if (known.insert(format_case(cell.problem)).second) cells.push_back(cell);
  }
  return cells;
}

/// What was known before, and what is new. Returns the path; empty when there is no folder.
std::string keep(const Hardware& machine, const std::vector<TunedPass>& passes) {
  const std::string path = tuning_path(machine);
  if (path.empty()) return path;
  Tuning tuning = Tuning::read(path, identity_at_hand(machine));
  if (!tuning.ignored().empty()) {
    complain(tuning.ignored());
  }
  for (const TunedPass& pass : passes) {
    if (pass.reason.empty()) tuning.set(pass.key, pass.winner);
  }
  const std::string text = tuning.text();
  const std::span<const char> letters(text);
  const std::array pieces = {std::as_bytes(letters)};
  files::prepare_own_file(path);
  files::write_file(path, pieces);
  // Readers refuse what others may write, which a umask of 0 would let them.
  std::filesystem::permissions(
      path, std::filesystem::perms::group_write | std::filesystem::perms::others_write,
      std::filesystem::perm_options::remove);
  return path;
}

int tune(const CLI::App& app, const TuneFlags& flags) {
  const Format format = output_format(flags.format, flags.output);
  check_output(flags.output);
  const Grid grid =
      flags.preset.empty() ? expand_grid(flags.grid) : read_preset(flags.preset, app, true);
  const std::vector<Cell> cells = problems(grid);
  Tuner::Options options;
  options.device = parse_device("--device", flags.common.device);
  const Hardware machine = hardware(options.device);
  if (const std::string path = tuning_path(machine); !path.empty()) files::prepare_own_file(path);
  options.threads = thread_count(flags.common);
  options.limit_bytes = memory_limit(flags.common, machine);
  std::size_t passes_of_all = 0;
  for (const Cell& cell : cells) {
    const bool both = cell.has(Timed::both);
    passes_of_all +=
        (both || cell.has(Timed::forward) ? 1 : 0) + (both || cell.has(Timed::backward) ? 1 : 0);
  }
  options.seconds = flags.seconds / static_cast<double>(std::max<std::size_t>(1, passes_of_all));
  Tuner tuner(options);
  std::vector<TunedPass> passes;
  bool stopped = false;
  const auto write = [&] {
    std::string text = report(passes, options.device, format), path;
    std::exception_ptr lost;  // the table is written all the same
    try {
      path = keep(machine, passes);
    } catch (const files::FileError&) {
      lost = std::current_exception();
    }
    if (format == Format::markdown && !lost) {
      text += path.empty() ? "\nThe result is not stored: set TILEWISE_STATE_DIR or HOME.\n"
                           : fmt::format("\nStored in {}: plans on this device use it.\n", path);
    }
    write_output(flags.output, text);
    if (lost) std::rethrow_exception(lost);
  };
  // A form that is being compiled does not ask whether it may go on.
  const LongWork work(write,
                      [&] { return fmt::format("{} of {} passes", passes.size(), passes_of_all); });
  {
    Progress progress(cells.size());
    for (const Cell& cell : cells) {
      progress.show(format_case(cell.problem));
      try {
        tuner.run(cell, [&](TunedPass pass) { passes.push_back(std::move(pass)); });
      } catch (const Interrupted&) {
        stopped = true;
        break;
      }
      progress.advance();
    }
  }
  return work.end(stopped);
}

}  // namespace

void add_tune(CLI::App& program, int& exit_code) {
  const auto flags = std::make_shared<TuneFlags>();
  CLI::App* app = program.add_subcommand(
      "tune", "Measure every kernel, tile and split on this device; later plans use the fastest");
  add_grid_flags(*app, flags->grid, false);
  add_preset_flag(*app, flags->preset,
                  "  tilewise tune --seq 512,2048 --heads 8 --dim 64 --causal --seconds 30");
  add_real(*app, "--seconds", flags->seconds, "total seconds for all problems", 0, HUGE_VAL)
      ->option_text("S [60]");
  add_common_flags(*app, flags->common);
  add_output_flags(*app, flags->format, flags->output);
  app->callback([app, flags, &exit_code] { exit_code = tune(*app, *flags); });
}

}  // namespace tilewise::cli
