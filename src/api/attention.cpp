/// The public verbs: arguments become a Problem, the Problem a Plan, the Plan runs.
#include "tilewise/attention.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "api/execute.h"
#include "api/machine.h"
#include "api/plan_cache.h"
#include "api/workspace.h"
#include "build_info.h"
#include "plan/decision.h"
#include "plan/problem_key.h"
#include "problem/apart.h"

namespace tilewise {
namespace {

/// Saved state that is given has memory, and enough of it.
void require_saved(const Problem& problem, const Plan& plan) {
  const SavedState& saved = problem.saved;
  if (plan.saved_bytes == 0 || (saved.data == nullptr && saved.bytes <= 0)) return;
  if (saved.data == nullptr) {
    throw InvalidArgument("saved.data is null: expected " + std::to_string(plan.saved_bytes) +
                          " bytes for " + plan.kernel + ", or saved.bytes of 0");
  }
  if (saved.bytes < plan.saved_bytes) {
    throw InvalidArgument("saved.bytes is " + std::to_string(saved.bytes) + ": " + plan.kernel +
                          " needs at least " + std::to_string(plan.saved_bytes));
  }
  require_usable("saved", saved.data, plan.saved_bytes, problem);
}

/// Runs the row of `decision`, which was made for this problem.
void launch_row(const Decision& decision, const Plan& plan, const Problem& problem,
                const Launch& launch) {
  require_saved(problem, plan);
  if (launch.workspace != nullptr) {
    require_usable("workspace", launch.workspace, plan.workspace_bytes, problem);
  }
  const Workspace workspace(plan.workspace_bytes, plan.device, plan.kernel, launch);
  Executor& executor = launch.executor != nullptr ? *launch.executor : default_executor();
  decision.row->run(*decision.row, problem,
                    {.plan = plan,
                     .decision = decision.of_row.get(),
                     .workspace = workspace.data(),
                     .stream = launch.stream,
                     .executor = executor});
}

template <class Tensors>
std::shared_ptr<const Plan> plan_and_run(const Tensors& tensors, const AttentionSpec& spec,
                                         const Launch& launch, const Choice& choice) {
  const Problem problem = make_problem(tensors, spec, Purpose::run);
  std::shared_ptr<const Plan> plan = kept_plan(problem, choice);
  launch_row(*plan->decision, *plan, problem, launch);
  return plan;
}

/// The numbers of a plan that its kernel runs by.
auto numbers(const auto& of) {
  return std::tie(of.block_m, of.block_n, of.splits, of.threads, of.workspace_bytes,
                  of.saved_bytes);
}

std::string numbers_text(const Plan& plan) {
  return "tiles of " + std::to_string(plan.block_m) + " x " + std::to_string(plan.block_n) + ", " +
         std::to_string(plan.splits) + " splits, " + std::to_string(plan.threads) + " threads, " +
         std::to_string(plan.workspace_bytes) + " workspace and " +
         std::to_string(plan.saved_bytes) + " saved bytes";
}

/// False for a plan that the caller wrote or changed.
bool is_unchanged(const Plan& plan) {
  const Decision* decision = plan.decision.get();
  return decision != nullptr && plan.kernel == decision->row->name &&
         numbers(plan) == numbers(*decision);
}

/// What the plan's kernel takes for this problem on the machine at hand, on a CPU with as many
/// threads as the plan has scratch for.
Plan plan_anew(const Plan& plan, const Problem& problem) {
  try {
    Hardware machine = machine_at_hand(problem.device);
    if (problem.device.type == DeviceType::cpu) machine.threads = std::max(1, plan.threads);
    return plan_problem(problem, {.implementation = {}, .kernel = plan.kernel}, &machine);
  } catch (const Unsupported& error) {
    throw InvalidArgument("plan of " + plan.kernel +
                          " does not fit these tensors: " + error.what());
  }
}

/// A plan that was made for another problem, was changed, or was written by hand.
void run_anew(const Plan& plan, const Problem& problem, const Launch& launch) {
  const Plan fresh = plan_anew(plan, problem);
  if (!is_unchanged(plan) && numbers(plan) != numbers(fresh)) {
    throw InvalidArgument("plan of " + plan.kernel + " has " + numbers_text(plan) +
                          ": expected, for these tensors, " + numbers_text(fresh));
  }
  if (plan.workspace_bytes < fresh.workspace_bytes || plan.saved_bytes < fresh.saved_bytes) {
    throw InvalidArgument("plan has " + std::to_string(plan.workspace_bytes) +
                          " workspace bytes: this call needs " +
                          std::to_string(fresh.workspace_bytes) + "; plan with the same tensors");
  }
  launch_row(*fresh.decision, fresh, problem, launch);
}

template <class Tensors>
void run_plan(const Plan& plan, const Tensors& tensors, const AttentionSpec& spec,
              const Launch& launch) {
  const Problem problem = make_problem(tensors, spec, Purpose::run);
  if (plan.pass != problem.pass || plan.device != problem.device) {
    throw InvalidArgument("plan is for the " + std::string(pass_name(plan.pass)) + " on " +
                          device_name(plan.device) + ": expected one for the " +
                          std::string(pass_name(problem.pass)) + " on " +
                          device_name(problem.device));
  }
  if (!is_unchanged(plan) || plan.decision->problem != problem_key(problem))
    return run_anew(plan, problem, launch);
  launch_row(*plan.decision, plan, problem, launch);
}

}  // namespace

Plan plan(const ForwardTensors& tensors, const AttentionSpec& spec, const Choice& choice,
          const Hardware* machine) {
  return plan_problem(make_problem(tensors, spec, Purpose::plan), choice, machine);
}

Plan plan(const BackwardTensors& tensors, const AttentionSpec& spec, const Choice& choice,
          const Hardware* machine) {
  return plan_problem(make_problem(tensors, spec, Purpose::plan), choice, machine);
}

std::shared_ptr<const Plan> execute(const ForwardTensors& tensors, const AttentionSpec& spec,
                                    const Launch& launch, const Choice& choice) {
  return plan_and_run(tensors, spec, launch, choice);
}

std::shared_ptr<const Plan> execute(const BackwardTensors& tensors, const AttentionSpec& spec,
                                    const Launch& launch, const Choice& choice) {
  return plan_and_run(tensors, spec, launch, choice);
}

Plan forward(const ForwardTensors& tensors, const AttentionSpec& spec, const Launch& launch,
             const Choice& choice) {
  return *plan_and_run(tensors, spec, launch, choice);
}

Plan backward(const BackwardTensors& tensors, const AttentionSpec& spec, const Launch& launch,
              const Choice& choice) {
  return *plan_and_run(tensors, spec, launch, choice);
}

void run(const Plan& plan, const ForwardTensors& tensors, const AttentionSpec& spec,
         const Launch& launch) {
  run_plan(plan, tensors, spec, launch);
}

void run(const Plan& plan, const BackwardTensors& tensors, const AttentionSpec& spec,
         const Launch& launch) {
  run_plan(plan, tensors, spec, launch);
}

const char* version() { return TILEWISE_VERSION; }

}  // namespace tilewise
