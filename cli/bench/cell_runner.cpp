#include "cli/bench/cell_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/plan/pass_plans.h"
#include "cli/run/memory_block.h"
#include "cli/shell/args.h"
#include "cli/shell/failure.h"
#include "harness/conformance.h"
#include "harness/cuda_measure.h"
#include "harness/materialize.h"
#include "harness/memory_meter.h"
#include "plan/accounting.h"

namespace tilewise::cli {
namespace {

/// A run that takes up to the budget still finishes: warm-up until the budget is used, the last
/// warm-up run, one timed run. What takes longer is stopped.
constexpr double kDeadlineInBudgets = 3.0;

constexpr double kForeverSeconds = 1e9;

constexpr const char* kAllTimeOver = "the time for all rows is used up";

}  // namespace

std::string_view status_name(Status status) {
  constexpr std::string_view kNames[] = {"ok", "oom", "unsupported", "timeout"};
  return kNames[static_cast<int>(status)];
}

/// The state of one cell while it is measured. Memory is counted in the order in which a training
/// step holds it: inputs, outputs and saved state; the forward's workspace; then the gradients and
/// the backward's workspace on top of the live memory.
class CellRunner::Attempt {
 public:
  Attempt(CellRunner& runner, const Cell& cell)
      : runner_(runner),
        cell_(cell),
        device_(runner.options_.device),
        with_backward_(cell.has(Timed::backward) || cell.has(Timed::both)),
        meter_(runner.options_.limit_bytes),
        memory_(device_memory(device_, &meter_)) {}

  std::vector<Measurement> run() {
    for (const Timed timed : cell_.timed) rows_.push_back(blank(timed));
    stage_ = "planning";
    try {
      make_plans();
      if (runner_.left_s() <= 0.0) {
        skip();
      } else {
        measure_all();
      }
    } catch (const Unsupported& error) {
      fail(Status::unsupported, error.what());
    } catch (const OutOfMemory& error) {
      fail(Status::oom, fmt::format("{}: {}", stage_, error.what()));
    } catch (const TimedOut&) {
      fail_rest(runner_.left_s() <= 0.0 ? kAllTimeOver
                                        : fmt::format("{}: one run exceeds the budget of {:g} s",
                                                      stage_, runner_.options_.budget_s));
    }
    return std::move(rows_);
  }

 private:
  /// No time is left; whether there would be memory is known without any.
  void skip() {
    const std::int64_t peak_bytes =
        std::max(forward_plan_.peak_bytes(), with_backward_ ? backward_plan_.peak_bytes() : 0);
    const std::int64_t limit_bytes = runner_.options_.limit_bytes;
    if (peak_bytes > limit_bytes) {
      fail(Status::oom, fmt::format("needs {} of {} allowed (predicted)", bytes_text(peak_bytes),
                                    bytes_text(limit_bytes)));
    } else {
      fail_rest(kAllTimeOver);
    }
  }

  Measurement blank(Timed timed) const {
    Measurement row;
    row.problem = cell_.problem;
    row.implementation = cell_.implementation;
    row.kernel = cell_.kernel;
    row.device = device_;
    row.timed = timed;
    row.protocol = cell_.timer.protocol;
    row.threads = runner_.options_.threads;
    return row;
  }

  /// Every pass of the cell: one that does not fit takes the other with it.
  void fail(Status status, const std::string& reason) {
    for (Measurement& row : rows_) {
      if (row.status != Status::ok) continue;
      row.status = status;
      row.reason = reason;
      row.ms = {};
    }
  }

  /// The passes that have no numbers yet.
  void fail_rest(const std::string& reason) {
    for (Measurement& row : rows_) {
      if (row.ms.count > 0 || row.status != Status::ok) continue;
      row.status = Status::timeout;
      row.reason = reason;
    }
  }

  /// Leaves the forward alone to be measured, if it was asked for.
  void refuse_backward(const std::string& reason) {
    if (!cell_.has(Timed::forward)) throw Unsupported(reason);
    with_backward_ = false;
    for (Measurement& row : rows_) {
      if (row.timed == Timed::forward) continue;
      row.status = Status::unsupported;
      row.reason = reason;
    }
  }

  PassPlans plans_of(PlannedCase& planned) const {
    return plan_passes(planned.forward(), with_backward_ ? &planned.backward() : nullptr,
                       planned.spec(), cell_.choice(Pass::forward), cell_.choice(Pass::backward),
                       runner_.machine_);
  }

  void make_plans() {
    PlannedCase planned(cell_.problem, device_);
    PassPlans plans = plans_of(planned);
    if (!plans.backward_refusal.empty()) {
      refuse_backward(plans.backward_refusal);
      plans = plans_of(planned);
    }
    plans.require_forward();
    forward_plan_ = plans.forward;
    backward_plan_ = plans.backward;
    for (Measurement& row : rows_) {
      if (row.status != Status::ok) continue;
      const Plan& plan = row.timed == Timed::backward ? backward_plan_ : forward_plan_;
      row.kernel = plan.kernel;
      row.implementation = plan.implementation;
      row.flops = plan.flops;
      row.bytes_moved = plan.bytes_moved;
      if (row.timed != Timed::both) continue;
      row.kernel += "+" + backward_plan_.kernel;
      row.flops += backward_plan_.flops;
      row.bytes_moved += backward_plan_.bytes_moved;
    }
  }

  void measure_all() {
    stage_ = "forward";
    MaterializedCase made(cell_.problem, runner_.options_.seed, *memory_, {.guards = false});
    const Block saved(*memory_, with_backward_ ? forward_plan_.saved_bytes : 0);
    ForwardTensors forward = made.forward();
    forward.saved = {saved.data(), saved.bytes()};
    live_bytes_ = meter_.live_bytes();
    if (with_backward_) reserve_backward();

    {
      const Block workspace(*memory_, forward_plan_.workspace_bytes);
      const Launch launch = launch_with(workspace);
      const auto run_forward = [&] { tilewise::run(forward_plan_, forward, made.spec(), launch); };
      if (cell_.has(Timed::forward)) {
        time(Timed::forward, run_forward, [&](std::uint64_t seed) { made.refresh(seed); });
      }
      if (with_backward_) with_deadline(run_forward);
    }
    if (!with_backward_) return;

    stage_ = "backward";
    BackwardTensors backward = made.backward();
    backward.saved = forward.saved;
    meter_.reset_peak();
    const std::int64_t both_bytes = cell_.has(Timed::both) ? forward_plan_.workspace_bytes : 0;
    const Block workspace(*memory_, std::max(both_bytes, backward_plan_.workspace_bytes));
    const Launch launch = launch_with(workspace);
    const auto run_backward = [&] { tilewise::run(backward_plan_, backward, made.spec(), launch); };
    const auto run_both = [&] {
      tilewise::run(forward_plan_, forward, made.spec(), launch);
      run_backward();
    };
    if (cell_.has(Timed::backward)) {
      time(Timed::backward, run_backward, [&](std::uint64_t seed) {
        made.refresh(seed);
        // NOTE: its workspace is not metered: it is no part of the backward's peak.
        tilewise::run(forward_plan_, forward, made.spec(), {.executor = &runner_.executor_});
      });
    }
    if (cell_.has(Timed::both)) {
      stage_ = "forward and backward";
      time(Timed::both, run_both, [&](std::uint64_t seed) { made.refresh(seed); });
    }
  }

  /// Asks for the memory of the backward before any time is spent on the forward.
  void reserve_backward() {
    stage_ = "backward";
    {
      const Block gradients(*memory_, bytes_of(backward_plan_.memory, MemoryItem::Role::gradient));
      const Block workspace(*memory_, backward_plan_.workspace_bytes);
    }
    meter_.reset_peak();
    stage_ = "forward";
  }

  Launch launch_with(const Block& workspace) {
    return {.allocator = &meter_,
            .workspace = workspace.data(),
            .workspace_bytes = workspace.bytes(),
            .executor = &runner_.executor_};
  }

  void with_deadline(const std::function<void()>& work) {
    set_deadline();
    work();
    runner_.executor_.set_deadline({});
  }

  void set_deadline() {
    const double budget_s = runner_.options_.budget_s;
    const double time_s = std::min(budget_s > 0.0 ? kDeadlineInBudgets * budget_s : kForeverSeconds,
                                   runner_.left_s());
    if (time_s >= kForeverSeconds) return;
    using Clock = WatchedExecutor::Clock;
    const std::chrono::duration<double> time(time_s);
    runner_.executor_.set_deadline(Clock::now() +
                                   std::chrono::duration_cast<Clock::duration>(time));
  }

  void time(Timed timed, const std::function<void()>& run,
            const std::function<void(std::uint64_t)>& fresh_inputs) {
    TimedWork work;
    work.run = run;
    work.interrupted = [] { return interrupted(); };
    TimerOptions timer = cell_.timer;
    timer.budget_s = runner_.options_.budget_s;
    if (runner_.options_.total_s > 0.0) {
      const double left_s = std::max(runner_.left_s(), 1e-3);
      timer.budget_s = timer.budget_s > 0.0 ? std::min(timer.budget_s, left_s) : left_s;
    }
    if (timer.protocol == Protocol::burst) {
      work.fresh_inputs = fresh_inputs;
      work.flush = [this] { runner_.flush(); };
    }
    set_deadline();
    const Timing timing = measure(work, timer, *runner_.clock_);
    runner_.executor_.set_deadline({});
    throw_if_interrupted();
    for (Measurement& row : rows_) {
      if (row.timed != timed) continue;
      row.ms = timing.ms;
      row.live_bytes = live_bytes_;
      row.peak_bytes = meter_.peak_bytes();
      if (timing.out_of_budget) {
        row.reason = fmt::format("{} of {} runs fit the budget", timing.ms.count, timer.repeat);
      }
      if (runner_.options_.check) check(row);
    }
  }

  void check(Measurement& row) {
    for (const Plan* plan : {&forward_plan_, &backward_plan_}) {
      const bool wanted =
          row.timed == Timed::both || (row.timed == Timed::forward) == (plan == &forward_plan_);
      if (!wanted) continue;
      for (const KernelRow& kernel : kernel_table()) {
        if (plan->kernel != kernel.name || plan->pass != kernel.pass) continue;
        CheckOptions options;
        options.seed = runner_.options_.seed;
        options.device = device_;
        options.repeatable = false;
        options.executor = &runner_.executor_;
        const CheckResult result = check_case(kernel, row.problem, options);
        if (result.status != CheckStatus::failed) continue;
        row.failed_check = true;
        row.reason = fmt::format("check failed: {}; {}", result.reason, result.repeat);
      }
    }
  }

  CellRunner& runner_;
  const Cell& cell_;
  Device device_;
  bool with_backward_;
  MemoryMeter meter_;
  std::unique_ptr<DeviceMemory> memory_;
  Plan forward_plan_, backward_plan_;
  std::vector<Measurement> rows_;
  std::string stage_;
  std::int64_t live_bytes_ = 0;
};

CellRunner::CellRunner(Options options)
    : options_(options),
      machine_(hardware(options.device)),
      executor_(options.threads),
      begin_(WatchedExecutor::Clock::now()),
      clock_(options.device.type == DeviceType::cuda ? cuda_clock(options.device.index)
                                                     : cpu_clock()) {
  machine_.threads = options.threads;
}

void CellRunner::flush() {
  if (!flusher_) {
    if (options_.device.type == DeviceType::cuda) {
      flusher_ = [device = std::make_shared<CudaCacheFlusher>(options_.device.index)] {
        (*device)();
      };
    } else {
      flusher_ = [cpu = std::make_shared<CacheFlusher>()] { (*cpu)(); };
    }
  }
  flusher_();
}

double CellRunner::left_s() const {
  if (options_.total_s <= 0.0) return kForeverSeconds;
  const std::chrono::duration<double> passed = WatchedExecutor::Clock::now() - begin_;
  return options_.total_s - passed.count();
}

std::vector<Measurement> CellRunner::run(const Cell& cell) {
  try {
    return Attempt(*this, cell).run();
  } catch (...) {
    executor_.set_deadline({});
    throw;
  }
}

}  // namespace tilewise::cli
