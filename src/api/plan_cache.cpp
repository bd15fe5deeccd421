#include "api/plan_cache.h"

#include <cstdlib>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "api/machine.h"
#include "plan/choose.h"
#include "plan/problem_key.h"

namespace tilewise {
namespace {

/// More shapes than a program comes back to. A full cache is emptied.
constexpr std::size_t kMostPlans = 4096;

struct Cache {
  std::shared_mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const Plan>> plans;
};

/// Never destroyed: a thread may still be in a call while the process ends.
Cache& cache() {
  static Cache& kept = *new Cache;
  return kept;
}

/// The names that decide a plan beside the problem: the call's, else the environment's.
std::string names(const Choice& choice) {
  if (!choice.kernel.empty() || !choice.implementation.empty())
    return '=' + choice.implementation + '\n' + choice.kernel;
  const char* forced = std::getenv("TILEWISE_FORCE_KERNEL");
  return forced != nullptr ? forced : "";
}

std::shared_ptr<const Plan> make(const Problem& problem, const Choice& choice) {
  return std::make_shared<const Plan>(plan_problem(problem, choice));
}

}  // namespace

Plan plan_problem(const Problem& problem, const Choice& choice, const Hardware* machine) {
  const auto rows = kernel_table();
  const Hardware& at_hand = machine != nullptr ? *machine : machine_at_hand(problem.device);
  const bool tuned = machine == nullptr || machine->at_hand;
  return choose(problem, at_hand, with_environment(choice, problem.pass, rows), rows,
                tuned ? tuning_at_hand(at_hand) : nullptr);
}

std::shared_ptr<const Plan> kept_plan(const Problem& problem, const Choice& choice) {
  if (reads_host_lengths(problem)) return make(problem, choice);
  std::string key = problem_key(problem, names(choice));
  Cache& kept = cache();
  {
    const std::shared_lock reading(kept.mutex);
    const auto found = kept.plans.find(key);
    if (found != kept.plans.end()) return found->second;
  }
  std::shared_ptr<const Plan> made = make(problem, choice);
  const std::unique_lock writing(kept.mutex);
  if (kept.plans.size() >= kMostPlans) kept.plans.clear();
  return kept.plans.try_emplace(std::move(key), std::move(made)).first->second;
}

std::size_t plan_cache_size() {
  const std::shared_lock reading(cache().mutex);
  return cache().plans.size();
}

}  // namespace tilewise
