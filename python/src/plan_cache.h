/// Plans by geometry: planning asks every kernel row for its cost, a call of the same shape need
/// not.
#pragma once

#include <memory>

#include "spec.h"

namespace tilewise::python {

/// The plan for these tensors and this spec, made at most once. Guarded by the interpreter lock.
/// Throws what plan() throws. Not for calls whose plan depends on numbers (Call::reads_lengths).
std::shared_ptr<const Plan> cached_plan(const Call& call, const ForwardTensors& tensors);
std::shared_ptr<const Plan> cached_plan(const Call& call, const BackwardTensors& tensors);

std::size_t plan_cache_size();

}  // namespace tilewise::python
