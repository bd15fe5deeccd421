/// Plans by geometry: planning asks every kernel row, a second call of the same shape need not.
#pragma once

#include <cstddef>
#include <memory>

#include "problem/problem.h"
#include "tilewise/plan.h"

namespace tilewise {

/// The plan for a problem, from nothing that is kept: on `machine`, null the machine at hand, by
/// TILEWISE_FORCE_KERNEL where `choice` names nothing. Throws what plan() throws.
Plan plan_problem(const Problem& problem, const Choice& choice, const Hardware* machine = nullptr);

/// The plan for a problem on the machine at hand, made at most once for all problems of one
/// problem_key(), one `choice` and one TILEWISE_FORCE_KERNEL; made anew where host lengths count.
/// Bounded. Safe from many threads. Throws what plan() throws; nothing is kept then.
std::shared_ptr<const Plan> kept_plan(const Problem& problem, const Choice& choice);

/// Plans that are kept now.
std::size_t plan_cache_size();

}  // namespace tilewise
