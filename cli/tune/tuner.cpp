#include "cli/tune/tuner.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "cli/run/memory_block.h"
#include "cli/shell/failure.h"
#include "harness/cuda_measure.h"
#include "harness/materialize.h"
#include "harness/memory_meter.h"
#include "harness/timer.h"
#include "plan/choose.h"
#include "tilewise/error.h"

namespace tilewise::cli {
namespace {

/// A form that takes so many times the best one's first run is not run again.
constexpr double kHopeless = 1.5;
/// What the model takes stays unless another is faster by more than this: less is noise.
constexpr double kGain = 0.98;
constexpr std::size_t kMostTimes = 101;
/// Runs of a form in turn, so that caches are as warm as in a loop over it.
constexpr int kRound = 3;

Form form_of_plan(const Plan& plan) {
  return {plan.block_m, plan.block_n, plan.splits, plan.threads};
}

/// A form and its times so far.
struct Runner {
  Plan plan;
  std::vector<double> ms;
  double median() const { return summarize(ms).median; }
};

}  // namespace

/// The passes of one cell.
class Tuner::Trial {
 public:
  Trial(Tuner& tuner, const Cell& cell, const Keep& keep)
      : tuner_(tuner),
        cell_(cell),
        keep_(keep),
        meter_(tuner.options_.limit_bytes),
        memory_(device_memory(tuner.options_.device, &meter_)) {}

  void run() {
    const bool both = cell_.has(Timed::both);
    const bool backward = both || cell_.has(Timed::backward);
    MaterializedCase made(cell_.problem, tuner_.options_.seed, *memory_, {.guards = false});
    if (both || cell_.has(Timed::forward)) {
      const ForwardTensors& tensors = made.forward();
      tune(Pass::forward, make_problem(tensors, made.spec(), Purpose::run),
           [&](const Plan& plan, const Launch& launch) {
             tilewise::run(plan, tensors, made.spec(), launch);
           });
    }
    if (backward) {
      const BackwardTensors& tensors = made.backward();
      // O and LSE, which the backward reads.
      tilewise::forward(made.forward(), made.spec(), {.executor = &tuner_.executor_});
      memory_->synchronize();
      tune(Pass::backward, make_problem(tensors, made.spec(), Purpose::run),
           [&](const Plan& plan, const Launch& launch) {
             tilewise::run(plan, tensors, made.spec(), launch);
           });
    }
  }

 private:
  using Run = std::function<void(const Plan& plan, const Launch& launch)>;
  using Now = std::chrono::steady_clock;

  void tune(Pass pass, const Problem& problem, const Run& run) {
    TunedPass out;
    out.problem = cell_.problem;
    out.pass = pass;
    out.key = tuning_key(problem, tuner_.machine_);
    if (out.key.empty()) {
      out.reason =
          "packed sequences, key lengths, block lists, score or mask functions and deterministic "
          "are not tuned";
    } else {
      try {
        measure_all(problem, run, out);
      } catch (const Unsupported& error) {
        out.reason = error.what();
      } catch (const OutOfMemory& error) {
        out.reason = error.what();
      }
    }
    throw_if_interrupted();
    keep_(std::move(out));
  }

  void measure_all(const Problem& problem, const Run& run, TunedPass& out) {
    const auto rows = kernel_table();
    const Choice choice = cell_.choice(problem.pass);
    const Plan model = choose(problem, tuner_.machine_, choice, rows);
    out.model_kernel = model.kernel;
    out.model_form = form_of_plan(model);
    std::vector<Runner> runners;
    for (Plan& plan : all_forms(problem, tuner_.machine_, choice, rows)) {
      runners.push_back({std::move(plan), {}});
    }
    out.forms = static_cast<int>(runners.size());
    // What the model takes is measured whatever the time is.
    const auto own = std::find_if(runners.begin(), runners.end(), [&](const Runner& runner) {
      return runner.plan.kernel == model.kernel && form_of_plan(runner.plan) == out.model_form;
    });
    if (own != runners.end()) std::rotate(runners.begin(), own, own + 1);
    measure_in_turn(runners, run);
    const Runner& first = runners.front();
    const Runner* best = &first;
    for (const Runner& runner : runners) {
      if (runner.ms.empty()) continue;
      ++out.measured;
      if (runner.median() < kGain * first.median() && runner.median() < best->median())
        best = &runner;
    }
    out.winner = {best->plan.kernel, form_of_plan(best->plan), best->median(), first.median()};
  }

  /// Once each while the time lasts, then again and again those that may be the fastest.
  void measure_in_turn(std::vector<Runner>& runners, const Run& run) {
    std::int64_t bytes = 0;
    for (const Runner& runner : runners) bytes = std::max(bytes, runner.plan.workspace_bytes);
    const Block workspace(*memory_, bytes);
    const Launch launch{.allocator = &meter_,
                        .workspace = workspace.data(),
                        .workspace_bytes = workspace.bytes(),
                        .executor = &tuner_.executor_};
    const auto begin = Now::now();
    const auto is_over = [&](double share) {
      throw_if_interrupted();
      const std::chrono::duration<double> passed = Now::now() - begin;
      return passed.count() > share * tuner_.options_.seconds;
    };
    const auto time = [&](Runner& runner) {
      tuner_.clock_->start();
      run(runner.plan, launch);
      runner.ms.push_back(tuner_.clock_->stop_ms());
    };
    double best = 0.0;
    for (Runner& runner : runners) {
      if (!runner.plan.kernel.empty() && &runner != &runners.front() && is_over(0.6)) break;
      run(runner.plan, launch);  // a first run compiles
      memory_->synchronize();
      time(runner);
      if (best == 0.0 || runner.ms.front() < best) best = runner.ms.front();
    }
    std::vector<Runner*> hopeful;
    for (Runner& runner : runners) {
      const bool may = !runner.ms.empty() && runner.ms.front() <= kHopeless * best;
      if (may || &runner == &runners.front()) hopeful.push_back(&runner);
    }
    for (Runner* runner : hopeful) runner->ms.clear();  // alike from here on
    do {
      for (Runner* runner : hopeful) {
        for (int n = 0; n < kRound; ++n) time(*runner);
      }
    } while (!is_over(1.0) && hopeful.front()->ms.size() < kMostTimes);
  }

  Tuner& tuner_;
  const Cell& cell_;
  const Keep& keep_;
  MemoryMeter meter_;
  std::unique_ptr<DeviceMemory> memory_;
};

Tuner::Tuner(const Options& options)
    : options_(options),
      machine_(hardware(options.device)),
      executor_(options.threads),
      clock_(options.device.type == DeviceType::cuda ? cuda_clock(options.device.index)
                                                     : cpu_clock()) {
  machine_.threads = options.threads;
}

void Tuner::run(const Cell& cell, const Keep& keep) { Trial(*this, cell, keep).run(); }

}  // namespace tilewise::cli
