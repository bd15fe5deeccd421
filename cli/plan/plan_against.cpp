#include "cli/plan/plan_against.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "cli/machine/machines.h"
#include "cli/plan/plan_cells.h"
#include "cli/shell/args.h"
#include "cli/shell/failure.h"
#include "cpu/flash/flash.h"
#include "cpu/textbook/unfused.h"
#include "harness/materialize.h"
#include "harness/timer.h"
#include "plan/accounting.h"
#include "plan/kernel_row.h"
#include "plan/time_model.h"

namespace tilewise::cli {
namespace {

/// A choice within this of the best counts as right.
constexpr double kAsGood = 1.05;

/// A field's text; empty when it is missing, null or no text.
std::string text_of(const Value& row, const char* field) {
  return row.contains(field) && row.at(field).is_string() ? row.at(field).get<std::string>() : "";
}

/// A list as bench/lists.py and bench/cpu/lists.py tell it, `blocks=SIZE:DENSITY`, in the words of
/// a case; none where the mask is none. DENSITY is of the blocks that position shows. Those of a
/// list on a device are counted, whatever position hides, of one on the host what it shows.
std::optional<std::string> words_of_blocks(const std::string& mask, const Value& row) {
  constexpr std::string_view kBlocks = "blocks=";
  const std::size_t colon = mask.find(':');
  if (!mask.starts_with(kBlocks) || colon == std::string::npos || mask.rfind(':') != colon)
    return std::nullopt;
  const std::string size = mask.substr(kBlocks.size(), colon - kBlocks.size());
  const double blocks = row.at("seq_k").get<double>() / std::atof(size.c_str());
  double density = std::max(1.0, std::round(std::atof(mask.c_str() + colon + 1) * blocks)) / blocks;
  if (row.value("causal", false) && text_of(row, "device") != "cpu") density *= 0.5;
  return fmt::format("blocks={},{}:1,h:{}", size, size, density);
}

/// The problem of a row in the schema of `bench`; none when its mask is not told in the words of a
/// case.
std::optional<Case> case_of(const Value& row) {
  const auto number = [&](const char* field) { return row.at(field).get<std::int64_t>(); };
  const std::int64_t heads = number("heads"), seq_q = number("seq_q"), dim = number("head_dim");
  const std::string mask = text_of(row, "mask");
  const std::string words =
      words_of_blocks(mask, row).value_or(words_of_mask_field(mask.empty() ? "none" : mask));
  std::string line = fmt::format("h{}/{} d{} dv{} {}", heads, row.value("kv_heads", heads), dim,
                                 row.value("head_dim_v", dim), words);
  if (words.find("packed=") == std::string::npos) {
    line += fmt::format(" b{} q{} k{}", number("batch"), seq_q, row.value("seq_k", seq_q));
  }
  // What is served through pages has no backward.
  if (words.find("paged=") != std::string::npos) line += " pass=fwd";
  Case c;
  try {
    c = parse_case(line);
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
  if (c.causal == Causal::none && row.value("causal", false)) c.causal = Causal::bottom_right;
  c.dtype = parse_float_type("dtype", row.at("dtype").get<std::string>());
  c.deterministic = row.value("deterministic", false);
  if (text_of(row, "precision") == "tf32") c.precision = Precision::tf32;
  if (text_of(row, "precision") == "refined") c.precision = Precision::refined;
  if (text_of(row, "layout") == "bshd") c.layout = Layout::bshd;
  return c;
}

const KernelRow* row_named(const std::string& name) {
  for (const KernelRow& row : kernel_table()) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

Problem problem_of(PlannedCase& tensors, Pass pass) {
  return pass == Pass::forward ? make_problem(tensors.forward(), tensors.spec(), Purpose::plan)
                               : make_problem(tensors.backward(), tensors.spec(), Purpose::plan);
}

/// Memory as `bench` meters it: live before the backward, peak of the timed pass. A forward that
/// was measured with its backward keeps what that needs.
void add_memory(Compared& out, const Value& row, Cell cell, bool with_backward,
                const Hardware& machine) {
  const Value live = row.value("live_mib", Value()), peak = row.value("peak_mib", Value());
  out.live_mib = live.is_number() ? live.get<double>() : 0.0;
  out.peak_mib = peak.is_number() ? peak.get<double>() : 0.0;
  if (with_backward) cell.timed = {Timed::forward, Timed::backward};
  const std::vector<Planned> both =
      plan_cell(cell, machine, std::numeric_limits<std::int64_t>::max());
  const Planned& planned = out.pass == "fwd" ? both.front() : both.back();
  if (!planned.plan) return;
  out.planned_live_mib = mebibytes(planned.plan->live_bytes());
  out.planned_peak_mib = mebibytes(planned.plan->peak_bytes());
}

/// What makes two rows passes of one cell.
std::string cell_key(const Value& row) {
  std::string key;
  for (const char* field : {"implementation", "dtype", "batch", "heads", "kv_heads", "seq_q",
                            "seq_k", "head_dim", "mask"}) {
    key += row.value(field, Value()).dump() + " ";
  }
  return key;
}

/// A flash kernel of the CPU's.
cpu::Isa isa_of(const KernelRow& kernel) {
  const std::string name = kernel.name;
  return cpu::isa_from_name(name.substr(name.rfind('_') + 1));
}

/// The terms of the CPU's model: its work counted as the kernels' cost functions do.
std::array<double, kCpuTerms> features_of(const KernelRow& kernel, const Problem& problem,
                                          const Plan& plan, const Hardware& machine) {
  if (std::string_view(kernel.implementation) != "flash")
    return cpu_features(cpu::unfused_work(problem, plan.bytes_moved, machine.threads), machine);
  return cpu_features(cpu::flash_work(problem, machine, isa_of(kernel)), machine);
}

/// Whether a file's live_mib is without workspace, the schema's meaning. Beside peers it held the
/// workspace before its environment said so.
bool live_is_told(const Value& environment) {
  return !environment.contains("torch") || text_of(environment, "live_mib") == "without workspace";
}

bool is_timed(const Value& row) {
  return text_of(row, "status") == "ok" && row.value("ms_median", Value()).is_number();
}

std::optional<Compared> compare(const Value& row, bool with_backward, Hardware machine) {
  if (!is_timed(row)) return std::nullopt;
  // Steps of a framework's training hold more than the kernel.
  const std::string protocol = text_of(row, "protocol");
  if (protocol == "seed" || protocol == "board") return std::nullopt;
  const KernelRow* kernel = row_named(text_of(row, "kernel"));
  const std::string pass = text_of(row, "pass");
  if (kernel == nullptr || kernel->device != machine.device.type || pass == "fwd+bwd") {
    return std::nullopt;
  }
  const std::optional<Case> problem = case_of(row);
  if (!problem) return std::nullopt;
  set_threads(machine, row.value("threads", 0));
  Cell cell{*problem,
            "",
            kernel->name,
            {kernel->pass == Pass::forward ? Timed::forward : Timed::backward},
            {}};
  const std::vector<Planned> planned =
      plan_cell(cell, machine, std::numeric_limits<std::int64_t>::max());
  if (planned.empty() || !planned.front().plan) return std::nullopt;
  Compared out;
  out.problem = format_case(*problem);
  out.pass = pass;
  out.kernel = kernel->name;
  out.implementation = kernel->implementation;
  out.threads = machine.arch == 0 ? row.value("threads", 0) : 0;
  out.measured_ms = row.at("ms_median").get<double>();
  out.predicted_ms = planned.front().plan->predicted_ms;
  out.bound_ms = planned.front().bounds.least_ms();
  PlannedCase tensors(*problem, machine.device);
  const Problem judged = problem_of(tensors, kernel->pass);
  const Preparation prepared = kernel->prepare(*kernel, judged, machine);
  out.model_ms = std::get<Prepared>(prepared).cost.ms;  // planned above: not refused
  out.backward = kernel->pass == Pass::backward;
  out.masked = judged.has_positional_mask();
  out.arithmetic = arithmetic(judged);
  if (out.implementation != "flash") {
    out.form = cpu::unfused_form(judged);
  } else {
    if (machine.arch == 0) out.form = cpu::flash_form(judged, isa_of(*kernel));
  }
  out.arch = machine.arch;
  if (machine.arch == 0)
    out.features = features_of(*kernel, judged, *planned.front().plan, machine);
  add_memory(out, row, cell, with_backward, machine);
  if (out.implementation == "flash") {
    cell.kernel.clear();
    const std::vector<Planned> free =
        plan_cell(cell, machine, std::numeric_limits<std::int64_t>::max());
    if (free.front().plan) out.chosen = free.front().plan->kernel;
  }
  return out;
}

Value read_results(const std::string& path) {
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path)) {
    throw BadInput(fmt::format("{}: cannot be read", path));
  }
  const Value document = Value::parse(file, nullptr, false);
  if (document.is_discarded() || !document.is_object()) {
    throw BadInput(fmt::format("{}: expected a result file of `bench`", path));
  }
  return document;
}

/// How many problems have their flash kernels measured side by side, and on how many of them the
/// plan's choice is as good as the best.
std::pair<int, int> right_choices(const std::vector<Compared>& rows) {
  std::map<std::string, std::vector<const Compared*>> problems;
  for (const Compared& row : rows) {
    const std::string key = fmt::format("{} {} {}", row.problem, row.pass, row.threads);
    if (row.implementation == "flash") problems[key].push_back(&row);
  }
  int right = 0, several = 0;
  for (const auto& [name, kernels] : problems) {
    std::set<std::string> names;
    double best = kernels.front()->measured_ms, chosen = 0.0;
    for (const Compared* row : kernels) {
      names.insert(row->kernel);
      best = std::min(best, row->measured_ms);
      if (row->kernel == row->chosen) chosen = row->measured_ms;
    }
    if (names.size() < 2) continue;
    ++several;
    right += chosen > 0.0 && chosen <= kAsGood * best ? 1 : 0;
  }
  return {right, several};
}

}  // namespace

std::vector<Compared> compare_with_results(const std::string& path, const std::string& hardware) {
  const Value document = read_results(path);
  std::vector<Compared> out;
  if (!document.contains("rows")) return out;  // what `info --measure` found, say
  const Value& rows = document.at("rows");
  const bool timed = std::any_of(rows.begin(), rows.end(), [](const Value& row) {
    return row.is_object() && row.contains("ms_median");
  });
  if (!timed) return out;
  try {
    const Hardware machine =
        hardware.empty()
            ? machine_of_results(document.value("environment", Value::object())).hardware
            : named_machine(hardware).hardware;
    std::set<std::string> backward;
    for (const Value& row : rows) {
      if (text_of(row, "pass") != "fwd") backward.insert(cell_key(row));
    }
    const bool live_told = live_is_told(document.value("environment", Value::object()));
    for (const Value& row : rows) {
      const bool with_backward = backward.contains(cell_key(row));
      if (std::optional<Compared> compared = compare(row, with_backward, machine)) {
        if (!live_told) compared->live_mib = 0.0;
        out.push_back(*compared);
      }
    }
  } catch (const nlohmann::json::exception& error) {
    throw BadInput(fmt::format("{}: {}", path, error.what()));
  }
  return out;
}

std::vector<MeasuredBoth> both_passes_of_results(const std::string& path) {
  std::vector<MeasuredBoth> out;
  const Value document = read_results(path);
  for (const Value& row : document.value("rows", Value::array())) {
    if (!row.is_object() || text_of(row, "pass") != "fwd+bwd" || !is_timed(row)) continue;
    const std::string pair = text_of(row, "kernel");
    const KernelRow* kernel = row_named(pair.substr(0, pair.find('+')));
    const std::optional<Case> problem = kernel != nullptr ? case_of(row) : std::nullopt;
    if (!problem) continue;
    out.push_back(
        {kernel->implementation, format_case(*problem), row.at("ms_median").get<double>()});
  }
  return out;
}

Table compared_table(const std::vector<Compared>& rows) {
  Table table({{"problem"},
               {"pass"},
               {"implementation"},
               {"kernel"},
               {"chosen"},
               {"threads"},
               {"measured_ms"},
               {"predicted_ms"},
               {"error_percent", 1},
               {"bound_ms"},
               {"model_ms"},
               {"live_MiB", 2},
               {"planned_live_MiB", 2},
               {"peak_MiB", 2},
               {"planned_peak_MiB", 2}});
  for (const Compared& row : rows) {
    const Value live = row.live_mib > 0.0 ? Value(row.live_mib) : Value();
    table.add({row.problem, row.pass, row.implementation, row.kernel, row.chosen, row.threads,
               row.measured_ms, row.predicted_ms, 100.0 * row.error(), row.bound_ms, row.model_ms,
               live, row.planned_live_mib, row.peak_mib, row.planned_peak_mib});
  }
  return table;
}

Table error_table(const std::vector<Compared>& rows) {
  Table table({{"kernel"},
               {"rows"},
               {"median_percent", 1},
               {"p90_percent", 1},
               {"worst_percent", 1},
               {"choice"}});
  std::vector<std::string> names = {"flash", "all"};
  for (const Compared& row : rows) {
    if (std::find(names.begin(), names.end(), row.kernel) == names.end()) {
      names.insert(names.end() - 2, row.kernel);
    }
  }
  for (const std::string& name : names) {
    std::vector<double> errors;
    for (const Compared& row : rows) {
      if (name == row.kernel || name == row.implementation || name == "all") {
        errors.push_back(100.0 * std::abs(row.error()));
      }
    }
    if (errors.empty()) continue;
    const Statistics s = summarize(errors);
    Value choice;
    if (name == "flash") {
      const auto [right, several] = right_choices(rows);
      if (several > 0) choice = fmt::format("right on {} of {}", right, several);
    }
    table.add({name, s.count, s.median, s.p90, s.max, choice});
  }
  return table;
}

}  // namespace tilewise::cli
