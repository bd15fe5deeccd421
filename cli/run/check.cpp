/// tilewise check: every kernel that this machine can run, on the cases, against the reference.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <map>
#include <memory>

#include "cli/bench/grid.h"
#include "cli/machine/environment_report.h"
#include "cli/shell/args.h"
#include "cli/shell/commands.h"
#include "cli/shell/common_flags.h"
#include "cli/shell/failure.h"
#include "cli/shell/interrupt.h"
#include "cli/shell/output.h"
#include "cli/shell/progress.h"
#include "harness/conformance.h"
#include "harness/formulas.h"
#include "harness/materialize.h"
#include "problem/problem.h"

namespace tilewise::cli {
namespace {

constexpr double kNoLimit = 1e9;  ///< seconds

struct CheckFlags {
  bool smoke = false, conformance = false, three_way = false, expressions = false, seeds = false;
  bool edge = false, large = false, all = false;
  bool lists = false, sparse = false;
  std::string kernel, implementation, format, output;
  std::vector<std::string> cases;
  std::uint64_t seed = 1;
  std::int64_t random = 0, variants = 1, formulas = 0;
  double seconds = kNoLimit;
  CommonFlags common;
};

struct Tally {
  std::int64_t passed = 0, failed = 0, skipped = 0;
  double worst = 0.0;  ///< error over bound
  std::string worst_quantity;
};

struct Report {
  std::vector<CheckResult> failures;
  std::vector<std::pair<const KernelRow*, Tally>> tallies;
  std::vector<CheckResult> results;  ///< of --case only
  std::size_t finished = 0;
  bool stopped = false;
};

/// The problem of a line. A problem that no call takes is a bad line, not the fault of a kernel.
Case case_of(const std::string& line) {
  Case problem = parse_case(line);
  if (problem.invalid) return problem;
  const PlannedCase tensors(problem);
  try {
    static_cast<void>(make_problem(tensors.forward(), tensors.spec(), Purpose::plan));
  } catch (const InvalidArgument& error) {
    throw BadInput(fmt::format("--case '{}': {}", line, error.what()));
  }
  return problem;
}

/// Whether one of the rows takes the case.
bool is_taken(const Case& problem, const std::vector<const KernelRow*>& rows, Device device) {
  const PlannedCase tensors(problem, device);
  return std::any_of(rows.begin(), rows.end(), [&](const KernelRow* row) {
    const bool forward = row->pass == Pass::forward;
    if (!(forward ? problem.forward : problem.backward)) return false;
    const Problem p = forward ? make_problem(tensors.forward(), tensors.spec(), Purpose::plan)
                              : make_problem(tensors.backward(), tensors.spec(), Purpose::plan);
    return refusal_of(row->prepare(*row, p, hardware(device))).empty();
  });
}

/// The n-th draw. Some rows take problems of one kind only, which are not among the others.
Case random_problem(const CheckFlags& flags, std::int64_t n) {
  constexpr std::int64_t kSparseShare = 16, kFirstSparse = 2;
  const std::int64_t kind = n / flags.variants;
  if (flags.kernel == "flash_mla_sm90") return random_latent_case(flags.seed, n, flags.variants);
  if (flags.kernel == "flash_bwd_passing_sm90")
    return random_half_block_case(flags.seed, n, flags.variants);
  if (flags.lists) return random_list_case(flags.seed, n, flags.variants);
  if (flags.sparse && flags.kernel == "flash_decode_sm90")
    return random_served_case(flags.seed, n, flags.variants);
  if (flags.sparse || kind % kSparseShare == kFirstSparse)
    return random_sparse_case(flags.seed, n, flags.variants);
  return random_case(flags.seed, n, flags.variants);
}

/// --random: problems that the rows take. After kMostDraws for each without so many, what there is;
/// kLeastKinds are eight times as many as follow each other with few types and head dims.
std::vector<Case> random_cases(const CheckFlags& flags, const std::vector<const KernelRow*>& rows,
                               Device device) {
  constexpr std::int64_t kMostDraws = 50, kLeastKinds = 4096;
  const std::int64_t kinds = std::max(kMostDraws * flags.random, kLeastKinds);
  std::vector<Case> cases;
  for (std::int64_t n = 0; n / flags.variants < kinds; ++n) {
    if (std::ssize(cases) == flags.random) break;
    Case c = random_problem(flags, n);
    if (is_taken(c, rows, device)) cases.push_back(std::move(c));
  }
  return cases;
}

std::vector<Case> wanted_cases(const CheckFlags& flags, const std::vector<const KernelRow*>& rows,
                               Device device) {
  std::vector<Case> cases;
  for (const std::string& line : flags.cases) cases.push_back(case_of(line));
  if (!cases.empty()) return cases;
  if (flags.random > 0) cases = random_cases(flags, rows, device);
  const bool none = flags.random == 0 && !flags.smoke && !flags.conformance && !flags.three_way &&
                    !flags.edge && !flags.expressions && !flags.seeds && !flags.large && !flags.all;
  const std::pair<const char*, bool> sets[] = {{"smoke", flags.smoke || none},
                                               {"conformance", flags.conformance},
                                               {"block_lists", flags.conformance},
                                               {"three_way", flags.three_way},
                                               {"edge", flags.edge},
                                               {"expressions", flags.expressions},
                                               {"seeds", flags.seeds},
                                               {"large", flags.large}};
  for (const auto& [name, wanted] : sets) {
    if (!wanted && !(flags.all && std::string_view(name) != "large")) continue;
    for (Case& c : read_case_file(fmt::format("{}/{}.txt", cases_folder(), name))) {
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

std::vector<const KernelRow*> wanted_rows(const CheckFlags& flags, Device device) {
  std::vector<const KernelRow*> rows;
  std::vector<std::string> kernels;
  std::vector<std::string> implementations;
  for (const KernelRow& row : kernel_table()) {
    kernels.emplace_back(row.name);
    if (std::find(implementations.begin(), implementations.end(), row.implementation) ==
        implementations.end()) {
      implementations.emplace_back(row.implementation);
    }
    const bool named = flags.kernel == row.name || flags.implementation == row.implementation;
    const bool free = flags.kernel.empty() && flags.implementation.empty() &&
                      std::string_view(row.implementation) != "reference";
    if (row.device == device.type && (named || free)) rows.push_back(&row);
  }
  if (!flags.kernel.empty()) check_one_of("--kernel", flags.kernel, kernels);
  if (!flags.implementation.empty()) check_one_of("--impl", flags.implementation, implementations);
  if (rows.empty()) {
    throw Unsupported(
        fmt::format("expected the name of a kernel that runs on {}", device_name(device)));
  }
  return rows;
}

void count(const CheckResult& result, Tally& tally) {
  if (result.status == CheckStatus::skipped) ++tally.skipped;
  if (result.status == CheckStatus::passed) ++tally.passed;
  if (result.status == CheckStatus::failed) ++tally.failed;
  for (const Deviation& deviation : result.deviations) {
    const double ratio = deviation.bound > 0.0 ? deviation.error / deviation.bound : 0.0;
    if (ratio <= tally.worst) continue;
    tally.worst = ratio;
    tally.worst_quantity = deviation.quantity;
  }
}

/// Fills `report`, which the last words of an interrupt may read meanwhile.
void check_all(const std::vector<Case>& cases, const std::vector<const KernelRow*>& rows,
               const CheckOptions& options, bool keep_results, Report& report) {
  for (const KernelRow* row : rows) report.tallies.emplace_back(row, Tally{});
  Progress progress(cases.size() * rows.size());
  for (const Case& c : cases) {
    for (auto& [row, tally] : report.tallies) {
      if (interrupted()) {
        report.stopped = true;
        return;
      }
      progress.show(fmt::format("{}  {}", row->name, c.id.empty() ? format_case(c) : c.id));
      CheckResult result = check_case(*row, c, options);
      // A Ctrl-C inside the case makes it fail by exception: that says nothing about the kernel.
      if (interrupted()) continue;
      progress.advance();
      ++report.finished;
      count(result, tally);
      if (result.status == CheckStatus::failed) {
        progress.clear();
        std::fputs(
            fmt::format("FAILED {}: {}\n  {}\n", row->name, result.reason, result.repeat).c_str(),
            stderr);
        report.failures.push_back(result);
      }
      if (keep_results) report.results.push_back(std::move(result));
    }
  }
  report.stopped = interrupted();
}

Table summary_table(const Report& report) {
  Table table({{"kernel"},
               {"passed"},
               {"failed"},
               {"skipped"},
               {"worst_error_of_bound"},
               {"worst_quantity"}});
  for (const auto& [row, tally] : report.tallies) {
    const bool ran = tally.passed + tally.failed > 0;
    table.add({row->name, tally.passed, tally.failed, tally.skipped,
               ran ? Value(tally.worst) : Value(), tally.worst_quantity});
  }
  return table;
}

/// Every quantity of single cases with its bound.
Table deviation_table(const Report& report) {
  Table table({{"kernel"},
               {"status"},
               {"quantity"},
               {"max_error", Column::kScientific},
               {"bound", Column::kScientific},
               {"reason"}});
  constexpr const char* kStatus[] = {"passed", "failed", "skipped"};
  for (const CheckResult& result : report.results) {
    const Value status = kStatus[static_cast<int>(result.status)];
    if (result.deviations.empty()) {
      table.add({result.kernel, status, Value(), Value(), Value(), result.reason});
    }
    for (const Deviation& deviation : result.deviations) {
      table.add({result.kernel, status, deviation.quantity, deviation.error, deviation.bound,
                 result.reason});
    }
  }
  return table;
}

std::string report_text(const Report& report, Format format, bool single) {
  const Table table = single ? deviation_table(report) : summary_table(report);
  if (format == Format::csv) return table.csv();
  const Environment environment = read_environment();
  if (format == Format::markdown) {
    return fmt::format("{}\n{}\n", table.markdown(), environment_line(environment));
  }
  Value failures = Value::array();
  for (const CheckResult& failure : report.failures) {
    failures.push_back(
        {{"kernel", failure.kernel}, {"reason", failure.reason}, {"repeat", failure.repeat}});
  }
  const Value document = {{"schema_version", 1},
                          {"environment", environment_json(environment)},
                          {"rows", table.json()},
                          {"failures", failures}};
  return document.dump(2) + "\n";
}

/// --formulas: no kernel row, but the text that all are made with.
int check_text(const CheckFlags& flags) {
  const Format format = output_format(flags.format, flags.output);
  check_output(flags.output);
  const Device device = parse_device("--device", flags.common.device);
  static_cast<void>(hardware(device));
  catch_interrupts();
  const FormulaCheck report = check_formulas(
      device, flags.formulas, flags.seed, thread_count(flags.common), flags.seconds, interrupted);
  for (const std::string& failure : report.failures)
    std::fputs(fmt::format("FAILED {}\n", failure).c_str(), stderr);
  Table table({{"formulas"}, {"points"}, {"points_that_differ"}, {"failed"}, {"seconds"}});
  const auto failed = static_cast<std::int64_t>(report.failures.size());
  table.add({report.formulas, report.points, report.differing, failed, report.seconds});
  const Value document = {{"schema_version", 1}, {"rows", table.json()}};
  write_output(flags.output, format == Format::csv        ? table.csv()
                             : format == Format::markdown ? table.markdown()
                                                          : document.dump(2) + "\n");
  if (interrupted()) {
    complain(fmt::format("interrupted after {} of {} formulas", report.formulas, flags.formulas));
    return kInterrupted;
  }
  if (failed == 0) return kDone;
  complain(fmt::format("{} of {} formulas failed", failed, report.formulas));
  return kCheckFailed;
}

int check(const CheckFlags& flags) {
  if (flags.random == 0 && flags.lists) throw BadInput("--lists: expected --random beside it");
  if (flags.random == 0 && flags.sparse) throw BadInput("--sparse: expected --random beside it");
  if (flags.random == 0 && flags.variants > 1)
    throw BadInput("--variants: expected --random beside it");
  if (flags.formulas == 0 && flags.seconds < kNoLimit)
    throw BadInput("--seconds: expected --formulas beside it");
  if (flags.formulas > 0) return check_text(flags);
  const Format format = output_format(flags.format, flags.output);
  check_output(flags.output);
  CheckOptions options;
  options.seed = flags.seed;
  options.device = parse_device("--device", flags.common.device);
  static_cast<void>(hardware(options.device));
  options.cache = make_reference_cache();
  WatchedExecutor executor(thread_count(flags.common));
  options.executor = &executor;
  const std::vector<const KernelRow*> rows = wanted_rows(flags, options.device);
  const std::vector<Case> cases = wanted_cases(flags, rows, options.device);
  const bool single = !flags.cases.empty();

  Report report;
  const LongWork work(
      [&] { write_output(flags.output, report_text(report, format, single)); },
      [&] { return fmt::format("{} of {} checks", report.finished, cases.size() * rows.size()); });
  check_all(cases, rows, options, single, report);
  if (const int code = work.end(report.stopped); code != kDone) return code;
  std::int64_t ran = 0;
  for (const auto& [row, tally] : report.tallies) ran += tally.passed + tally.failed;
  if (!report.failures.empty()) {
    complain(fmt::format("{} of {} checks failed", report.failures.size(), ran));
    return kCheckFailed;
  }
  if (ran == 0) throw Unsupported("no kernel supports any of the cases");
  return kDone;
}

}  // namespace

void add_check(CLI::App& program, int& exit_code) {
  const auto flags = std::make_shared<CheckFlags>();
  CLI::App* app = program.add_subcommand(
      "check", "Compare every kernel of this machine with the float64 reference");
  app->footer(
      "Examples:\n"
      "  tilewise check --device cuda:0 --conformance\n"
      "  tilewise check --kernel flash_fwd_avx2 --case \"b2 h4 s256 d64 f32 causal\"");
  const char* sets = "Cases [--smoke]";
  app->add_flag("--smoke", flags->smoke, "a few cases of each kind; takes seconds")->group(sets);
  app->add_flag("--conformance", flags->conformance, "every guarantee of docs/numerics.md")
      ->group(sets);
  app->add_flag("--three-way", flags->three_way, "every combination of three options")->group(sets);
  app->add_flag("--edge", flags->edge, "inputs that broke other libraries")->group(sets);
  app->add_flag("--expressions", flags->expressions, "score and mask expressions")->group(sets);
  app->add_flag("--seeds", flags->seeds, "problems of the seeds (docs/origins.md)")->group(sets);
  app->add_flag("--large", flags->large, "sizes past 2^31 elements; needs much memory")
      ->group(sets);
  app->add_flag("--all", flags->all,
                "--smoke, --conformance, --three-way, --edge, --expressions and --seeds")
      ->group(sets);
  add_integer(*app, "--random", flags->random, "N small random problems, from --seed", 0,
              1'000'000'000)
      ->group(sets)
      ->option_text("N");
  add_integer(*app, "--variants", flags->variants,
              "with --random: consecutive problems that differ only in sizes and values, to save "
              "compilation",
              1, 1'000'000)
      ->group(sets)
      ->option_text("N [1]");
  add_integer(*app, "--formulas", flags->formulas,
              "compare N random score functions and masks on a GPU with the interpreter", 0,
              1'000'000'000)
      ->group(sets)
      ->option_text("N");
  add_real(*app, "--seconds", flags->seconds,
           "with --formulas: start no new formula after S seconds", 0.0, 1e9)
      ->group(sets)
      ->option_text("S");
  app->add_flag("--lists", flags->lists, "with --random: give each problem a block list")
      ->group(sets);
  app->add_flag("--sparse", flags->sparse,
                "with --random: only long problems of few pairs and many short heads, which are "
                "one in sixteen else")
      ->group(sets);
  app->add_option("--case", flags->cases,
                  "one problem as a case line (see cases/README.md); repeatable")
      ->group(sets)
      ->option_text("\"LINE\"");
  const char* kernels = "Kernels [all of the device, without the reference]";
  app->add_option("--kernel", flags->kernel, "kernel name")->group(kernels)->option_text("NAME");
  app->add_option("--impl", flags->implementation, "baseline, eager, fused, flash or reference")
      ->group(kernels)
      ->option_text("NAME");
  add_integer(*app, "--seed", flags->seed, "seed of the random inputs", 0)->option_text("N [1]");
  add_device_flags(*app, flags->common);
  add_output_flags(*app, flags->format, flags->output);
  app->callback([flags, &exit_code] { exit_code = check(*flags); });
}

}  // namespace tilewise::cli
