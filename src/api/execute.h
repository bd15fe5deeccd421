/// The verbs as the C API and the Python package call them: without a copy of the plan.
#pragma once

#include <memory>

#include "tilewise/attention.h"
#include "tilewise/kv_cache.h"

namespace tilewise {

/// forward() and backward(). Returns the plan that ran, from the plan cache where it can be.
std::shared_ptr<const Plan> execute(const ForwardTensors& tensors, const AttentionSpec& spec,
                                    const Launch& launch, const Choice& choice);
std::shared_ptr<const Plan> execute(const BackwardTensors& tensors, const AttentionSpec& spec,
                                    const Launch& launch, const Choice& choice);

/// Both calls of a shared prefix as one plan, whose kernel is "PREFIX+OWN".
Plan as_one(const PrefixPlan& plan);

}  // namespace tilewise
