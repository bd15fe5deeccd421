#include "plan/choose.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "plan/accounting.h"
#include "plan/batch_invariance.h"
#include "plan/problem_key.h"
#include "plan/significant.h"
#include "plan/time_model.h"

namespace tilewise {
namespace {

using Role = MemoryItem::Role;

/// The refusal of every implementation except flash. A list of refusals states it once.
constexpr std::string_view kOnlyWhenNamed =
    "not considered by default; name the implementation to use it";

/// Sum of the parts as WorkspaceCutter lays them out.
std::int64_t aligned_bytes(const std::vector<MemoryPart>& parts, Role role) {
  std::int64_t bytes = 0;
  for (const MemoryPart& part : parts) {
    if (part.role == role) bytes += align_workspace(part.bytes);
  }
  return bytes;
}

Plan make_plan(const Problem& p, const KernelRow& row, Prepared prepared) {
  Cost& cost = prepared.cost;
  Plan plan;
  plan.pass = p.pass;
  plan.kernel = row.name;
  plan.implementation = row.implementation;
  plan.device = p.device;
  plan.block_m = cost.block_m;
  plan.block_n = cost.block_n;
  plan.splits = cost.splits;
  plan.threads = cost.threads;
  plan.memory = problem_memory(p);
  for (const MemoryPart& part : cost.memory) plan.memory.push_back(part.item());
  plan.workspace_bytes = aligned_bytes(cost.memory, Role::workspace);
  plan.saved_bytes = aligned_bytes(cost.memory, Role::saved);
  plan.keeps_saved = p.pass == Pass::backward || p.saved.data != nullptr || p.saved.bytes > 0;
  plan.flops = attention_flops(p);
  plan.bytes_moved = cost.bytes_moved;
  plan.predicted_ms = cost.ms;
  plan.decision = std::make_shared<const Decision>(Decision{.row = &row,
                                                            .problem = problem_key(p),
                                                            .workspace_bytes = plan.workspace_bytes,
                                                            .saved_bytes = plan.saved_bytes,
                                                            .block_m = plan.block_m,
                                                            .block_n = plan.block_n,
                                                            .splits = plan.splits,
                                                            .threads = plan.threads,
                                                            .made = std::move(prepared.decision)});
  return plan;
}

std::string ms_text(double ms) { return significant(ms, 3) + " ms"; }

/// Why a row is not even asked whether it supports the problem; empty when it is.
std::string passed_over(const KernelRow& row, const Choice& choice) {
  if (!choice.kernel.empty())
    return choice.kernel == row.name ? "" : "the caller named another kernel";
  const std::string_view wanted =
      choice.implementation.empty() ? std::string_view("flash") : choice.implementation;
  return wanted == row.implementation ? "" : std::string(kOnlyWhenNamed);
}

/// Why a row that supports the problem is not taken unless it is named; empty when it is.
std::string trial_of(const KernelRow& row, const Problem& p, const Choice& choice) {
  if (!choice.kernel.empty() || row.on_trial == nullptr) return "";
  const std::string reason = row.on_trial(row, p);
  return reason.empty() ? "" : "runs only if named: " + reason;
}

[[noreturn]] void refuse(const Problem& p, const Choice& choice,
                         const std::vector<Refusal>& refusals) {
  std::string message =
      "no kernel runs this " + std::string(pass_name(p.pass)) + " on " + device_name(p.device);
  if (!choice.kernel.empty())
    message = "kernel " + choice.kernel + " cannot run this " + std::string(pass_name(p.pass));
  if (choice.kernel.empty() && !choice.implementation.empty())
    message += " as " + choice.implementation;
  for (const std::string& line : refusal_lines(refusals, choice.kernel)) message += "\n  " + line;
  throw Unsupported(message);
}

/// The kernel of `pass` if the caller names one per pass, FORWARD+BACKWARD.
Choice of_pass(const Choice& choice, Pass pass, std::span<const KernelRow> rows) {
  const std::size_t plus = choice.kernel.find('+');
  if (plus == std::string::npos) return choice;
  Choice out = choice;
  const std::string names[] = {choice.kernel.substr(0, plus), choice.kernel.substr(plus + 1)};
  for (const Pass each : {Pass::forward, Pass::backward}) {
    const std::string& name = names[each == Pass::forward ? 0 : 1];
    find_row(rows, name, each);
    if (each == pass) out.kernel = name;
  }
  return out;
}

void check_names(const Choice& choice, Pass pass, std::span<const KernelRow> rows) {
  if (!choice.kernel.empty()) find_row(rows, choice.kernel, pass);
  if (choice.implementation.empty()) return;
  std::string known;
  for (const KernelRow& row : rows) {
    if (choice.implementation == row.implementation) return;
    if (known.find(row.implementation) == std::string::npos)
      known += (known.empty() ? "" : ", ") + std::string(row.implementation);
  }
  throw InvalidArgument("implementation is \"" + choice.implementation + "\": expected one of " +
                        known);
}

double predicted_ms(const KernelRow& row, const Problem& p, double ms, const Hardware& machine) {
  return row.device == DeviceType::cuda ? fitted_cuda_ms(row.name, p, ms, machine) : ms;
}

/// What rows are compared by.
double ranking_ms(const KernelRow& row, const Problem& p, const Cost& cost,
                  const Hardware& machine) {
  if (takes_first_kernel(p)) return 0.0;
  if (!plans_one_entry(p)) return cost.ms;
  const Problem one = one_entry(p);
  const Preparation alone = row.prepare(row, one, machine);
  const Prepared* prepared = std::get_if<Prepared>(&alone);
  // What one entry is refused goes behind everything else, whatever the batch.
  if (prepared == nullptr) return std::numeric_limits<double>::infinity();
  return predicted_ms(row, one, prepared->cost.ms, machine);
}

/// What predicted times are compared for, and a comma.
const char* compared_for(const Problem& p) {
  return plans_one_entry(p) ? " for one entry (deterministic), " : ", ";
}

/// Why the row of that rank was not taken.
std::string outdone(const Problem& p, double ms, const std::string& by) {
  if (takes_first_kernel(p)) return "packed and deterministic: " + by + " comes first";
  return "predicted " + ms_text(ms) + compared_for(p) + "slower than " + by;
}

std::string reason_of(const Problem& p, const Choice& choice, double ms) {
  if (!choice.kernel.empty() || !choice.implementation.empty()) return "named by the caller";
  if (takes_first_kernel(p))
    return "first flash kernel that supports the call (packed and deterministic)";
  return std::string("lowest predicted time of the flash kernels") + compared_for(p) + ms_text(ms);
}

Form numbers_of(const Cost& cost) {
  return {cost.block_m, cost.block_n, cost.splits, cost.threads};
}

/// The plan of a row in one of its forms; none when the row refuses the problem or the form.
std::optional<Plan> plan_form(const Problem& p, const KernelRow& row, const Hardware& machine,
                              const Choice& choice, const Form& form) {
  if (row.pass != p.pass || row.device != p.device.type) return std::nullopt;
  if (!passed_over(row, choice).empty() || !trial_of(row, p, choice).empty()) return std::nullopt;
  Forms forms{.wanted = form, .seen = {}};
  Problem asked = p;
  asked.forms = &forms;
  Preparation preparation = row.prepare(row, asked, machine);
  auto* prepared = std::get_if<Prepared>(&preparation);
  if (prepared == nullptr || numbers_of(prepared->cost) != form) return std::nullopt;
  prepared->cost.ms = predicted_ms(row, p, prepared->cost.ms, machine);
  return make_plan(p, row, std::move(*prepared));
}

std::optional<Plan> plan_tuned(const Problem& p, const Hardware& machine, const Choice& choice,
                               std::span<const KernelRow> rows, const Tuning& tuned) {
  const Winner* winner = tuned.find(tuning_key(p, machine));
  if (winner == nullptr) return std::nullopt;
  for (const KernelRow& row : rows) {
    if (winner->kernel != row.name) continue;
    std::optional<Plan> plan = plan_form(p, row, machine, choice, winner->form);
    if (!plan) continue;
    plan->predicted_ms = winner->ms;
    plan->reason = "tuned: measured on this device, " + ms_text(winner->ms);
    if (winner->model_ms > winner->ms)
      plan->reason += "; the model's choice takes " + ms_text(winner->model_ms);
    for (const KernelRow& other : rows) {
      if (other.pass != p.pass || other.device != p.device.type || &other == &row) continue;
      std::string reason = passed_over(other, choice);
      if (reason.empty()) reason = refusal_of(other.prepare(other, p, machine));
      if (reason.empty()) reason = trial_of(other, p, choice);
      if (reason.empty()) reason = "tuned: " + winner->kernel + " is faster, as measured";
      plan->refusals.push_back({other.name, std::move(reason)});
    }
    return plan;
  }
  return std::nullopt;
}

}  // namespace

Plan choose(const Problem& p, const Hardware& machine, const Choice& named,
            std::span<const KernelRow> rows, const Tuning* tuned) {
  const Choice choice = of_pass(named, p.pass, rows);
  check_names(choice, p.pass, rows);
  if (tuned != nullptr) {
    if (std::optional<Plan> plan = plan_tuned(p, machine, choice, rows, *tuned)) return *plan;
  }
  const KernelRow* best = nullptr;
  Prepared best_prepared;
  double best_ms = 0.0;
  std::vector<Refusal> refusals;
  refusals.reserve(16);
  for (const KernelRow& row : rows) {
    if (row.pass != p.pass) continue;
    if (row.device != p.device.type) {
      if (choice.kernel == row.name) {
        refusals.push_back(
            {row.name, "it runs on " + std::string(row.device == DeviceType::cpu ? "cpu" : "cuda") +
                           ", the tensors are on " + device_name(p.device)});
      }
      continue;
    }
    std::string reason = passed_over(row, choice);
    Preparation preparation = reason.empty() ? row.prepare(row, p, machine) : std::move(reason);
    auto* prepared = std::get_if<Prepared>(&preparation);
    reason = prepared != nullptr ? trial_of(row, p, choice) : std::get<std::string>(preparation);
    if (!reason.empty()) {
      refusals.push_back({row.name, std::move(reason)});
      continue;
    }
    prepared->cost.ms = predicted_ms(row, p, prepared->cost.ms, machine);
    const double ms = ranking_ms(row, p, prepared->cost, machine);
    if (best != nullptr && best_ms <= ms) {
      refusals.push_back({row.name, outdone(p, ms, best->name)});
      continue;
    }
    if (best != nullptr) refusals.push_back({best->name, outdone(p, best_ms, row.name)});
    best = &row;
    best_ms = ms;
    best_prepared = std::move(*prepared);
  }
  if (best == nullptr) refuse(p, choice, refusals);
  Plan plan = make_plan(p, *best, std::move(best_prepared));
  plan.refusals = std::move(refusals);
  plan.reason = reason_of(p, choice, best_ms);
  if (tuned != nullptr && !tuned->ignored().empty()) plan.reason += "; " + tuned->ignored();
  return plan;
}

std::vector<Plan> all_forms(const Problem& p, const Hardware& machine, const Choice& named,
                            std::span<const KernelRow> rows) {
  const Choice choice = of_pass(named, p.pass, rows);
  std::vector<Plan> plans;
  for (const KernelRow& row : rows) {
    if (row.pass != p.pass || row.device != p.device.type) continue;
    if (!passed_over(row, choice).empty() || !trial_of(row, p, choice).empty()) continue;
    Forms forms;
    Problem asked = p;
    asked.forms = &forms;
    const Preparation preparation = row.prepare(row, asked, machine);
    const auto* prepared = std::get_if<Prepared>(&preparation);
    if (prepared == nullptr) continue;
    if (forms.seen.empty()) forms.seen.push_back(numbers_of(prepared->cost));
    for (const Form& form : forms.seen) {
      if (std::optional<Plan> plan = plan_form(p, row, machine, choice, form)) {
        plans.push_back(std::move(*plan));
      }
    }
  }
  if (plans.empty()) plans.push_back(choose(p, machine, named, rows));
  std::stable_sort(plans.begin(), plans.end(),
                   [](const Plan& a, const Plan& b) { return a.predicted_ms < b.predicted_ms; });
  return plans;
}

const KernelRow& find_row(std::span<const KernelRow> rows, const std::string& name, Pass pass) {
  for (const KernelRow& row : rows) {
    if (row.pass == pass && name == row.name) return row;
  }
  std::string known;
  for (const KernelRow& row : rows) {
    if (row.pass == pass) known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  throw InvalidArgument("kernel is \"" + name + "\": expected a " + std::string(pass_name(pass)) +
                        " kernel, one of " + known);
}

Choice with_environment(const Choice& choice, Pass pass, std::span<const KernelRow> rows) {
  if (!choice.kernel.empty() || !choice.implementation.empty()) return choice;
  const char* forced = std::getenv("TILEWISE_FORCE_KERNEL");
  if (forced == nullptr || *forced == '\0') return choice;
  if (std::strchr(forced, '+') != nullptr) {
    try {
      return of_pass({.implementation = "", .kernel = forced}, pass, rows);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument("TILEWISE_FORCE_KERNEL is \"" + std::string(forced) +
                            "\": " + error.what());
    }
  }
  bool known = false;
  for (const KernelRow& row : rows) {
    known = known || std::string(row.name) == forced;
    if (row.pass == pass && std::string(row.name) == forced)
      return {.implementation = "", .kernel = forced};
    if (std::string(row.implementation) == forced) return {.implementation = forced, .kernel = ""};
  }
  if (known) return choice;  // a kernel of the other pass
  throw InvalidArgument(
      "TILEWISE_FORCE_KERNEL is \"" + std::string(forced) +
      "\": expected a kernel, an implementation, or FORWARD+BACKWARD (one kernel per pass)");
}

}  // namespace tilewise
