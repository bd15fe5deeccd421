/// The public verbs: arguments become a Problem, the Problem a Plan, the Plan runs.
#include "tilewise/attention.h"

#include "api/machine.h"
#include "build_info.h"
#include "plan/choose.h"

namespace tilewise {
namespace {

/// Workspace of one call: the caller's, or from the call's allocator, given back at the end.
class Workspace {
 public:
  Workspace(const Plan& plan, const Launch& launch) : launch_(launch), device_(plan.device) {
    if (plan.workspace_bytes == 0) return;
    if (launch.workspace != nullptr) {
      if (launch.workspace_bytes < plan.workspace_bytes) {
        throw InvalidArgument("workspace_bytes is " + std::to_string(launch.workspace_bytes) +
                              ": " + plan.kernel + " needs at least " +
                              std::to_string(plan.workspace_bytes));
      }
      data_ = launch.workspace;
      return;
    }
    owned_bytes_ = plan.workspace_bytes;
    allocator_ = launch.allocator != nullptr ? launch.allocator : &default_allocator();
    data_ = allocator_->allocate(owned_bytes_, device_, launch.stream);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (allocator_ != nullptr) allocator_->release(data_, owned_bytes_, device_, launch_.stream);
  }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  const Launch& launch_;
  Device device_;
  Allocator* allocator_ = nullptr;
  void* data_ = nullptr;
  std::int64_t owned_bytes_ = 0;
};

void launch_plan(const Plan& plan, const Problem& problem, const Launch& launch) {
  if (problem.saved.data != nullptr && problem.saved.bytes < plan.saved_bytes) {
    throw InvalidArgument("saved.bytes is " + std::to_string(problem.saved.bytes) + ": " +
                          plan.kernel + " needs at least " + std::to_string(plan.saved_bytes));
  }
  const KernelRow& row = find_row(kernel_table(), plan.kernel, plan.pass);
  const Workspace workspace(plan, launch);
  Executor& executor = launch.executor != nullptr ? *launch.executor : default_executor();
  row.run(
      row, problem,
      {.plan = plan, .workspace = workspace.data(), .stream = launch.stream, .executor = executor});
}

Plan plan_problem(const Problem& problem, const Choice& choice, const Hardware* machine) {
  const auto rows = kernel_table();
  const Hardware& at_hand = machine != nullptr ? *machine : machine_at_hand(problem.device);
  return choose(problem, at_hand, with_environment(choice, problem.pass, rows), rows);
}

template <class Tensors>
Plan execute(const Tensors& tensors, const AttentionSpec& spec, const Launch& launch,
             const Choice& choice) {
  const Problem problem = make_problem(tensors, spec, Purpose::run);
  Plan plan = plan_problem(problem, choice, nullptr);
  launch_plan(plan, problem, launch);
  return plan;
}

template <class Tensors>
void execute(const Plan& plan, const Tensors& tensors, const AttentionSpec& spec,
             const Launch& launch) {
  const Problem problem = make_problem(tensors, spec, Purpose::run);
  if (plan.pass != problem.pass || plan.device != problem.device) {
    throw InvalidArgument("plan is for the " + std::string(pass_name(plan.pass)) + " on " +
                          device_name(plan.device) + ": expected one for the " +
                          std::string(pass_name(problem.pass)) + " on " +
                          device_name(problem.device));
  }
  launch_plan(plan, problem, launch);
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

Plan forward(const ForwardTensors& tensors, const AttentionSpec& spec, const Launch& launch,
             const Choice& choice) {
  return execute(tensors, spec, launch, choice);
}

Plan backward(const BackwardTensors& tensors, const AttentionSpec& spec, const Launch& launch,
              const Choice& choice) {
  return execute(tensors, spec, launch, choice);
}

void run(const Plan& plan, const ForwardTensors& tensors, const AttentionSpec& spec,
         const Launch& launch) {
  execute(plan, tensors, spec, launch);
}

void run(const Plan& plan, const BackwardTensors& tensors, const AttentionSpec& spec,
         const Launch& launch) {
  execute(plan, tensors, spec, launch);
}

const char* version() { return TILEWISE_VERSION; }

}  // namespace tilewise
