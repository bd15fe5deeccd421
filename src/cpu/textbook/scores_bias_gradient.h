/// dbias of the implementations that have the scores' gradient in memory.
#pragma once

#include "problem/problem.h"
#include "tilewise/runtime.h"

namespace tilewise::cpu {

/// dbias = dX, summed over the axes that the bias broadcasts over (B6). `dx` has scores_shape().
/// One task for each piece of the bias's own elements, which sums in a fixed order: nothing is
/// shared.
void scores_bias_gradient(const Problem& problem, const float* dx, Executor& executor, int workers);

}  // namespace tilewise::cpu
