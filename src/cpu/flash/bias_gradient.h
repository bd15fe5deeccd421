/// dbias: the gradient of an additive bias of any shape that broadcasts to (B, Hq, Sq, Sk).
#pragma once

#include "cpu/flash/score_tile.h"
#include "tilewise/runtime.h"

namespace tilewise::cpu {

/// dbias = 0 of all packed rows, those past the last sequence too. Nothing where rows are not
/// packed.
void clear_packed_bias_gradient(const Problem& problem);

/// A pass of its own, for a bias that broadcasts: one task for each tile of the bias's own
/// elements, which sums dS over everything that broadcasts onto it, in a fixed order, in float32.
/// Nothing is shared between tasks. `known` (of row 0) as the main pass computed it, (B, Hq, Sq),
/// packed (Hq, total_q); `scratch` has one ScoreTileStep scratch a worker. NOTE: the scores are
/// recomputed, two products more than the main pass; only callers of dbias pay for it.
void bias_gradient(const Problem& problem, const ScoreTileStep& tile, Executor& executor,
                   int workers, const ScoreTileStep::Rows& known, float* scratch);

}  // namespace tilewise::cpu
