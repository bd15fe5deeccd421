/// Plans by shape. Planning asks every kernel row; a second call of the same shape takes its plan
/// from here.
#pragma once

#include <cstddef>
#include <memory>

#include "problem/problem.h"
#include "tilewise/plan.h"

namespace tilewise {

/// Plans a problem without the cache. A null `machine` means the machine at hand. If `choice` names
/// nothing, TILEWISE_FORCE_KERNEL counts. Throws what plan() throws.
Plan plan_problem(const Problem& problem, const Choice& choice, const Hardware* machine = nullptr);

/// The plan for a problem on the machine at hand. Problems with the same problem_key(), `choice`
/// and TILEWISE_FORCE_KERNEL share one plan. Problems whose host lengths count are planned in every
/// call. The cache is bounded and thread-safe. Throws what plan() throws, and keeps nothing then.
std::shared_ptr<const Plan> kept_plan(const Problem& problem, const Choice& choice);

/// Plans that are kept now.
std::size_t plan_cache_size();

}  // namespace tilewise
