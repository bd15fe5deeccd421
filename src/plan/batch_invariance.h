/// Batch invariance: what planning may look at, so that results do not depend on the batch. Kernel,
/// tiles and parts all decide bits.
#pragma once

#include "problem/problem.h"

namespace tilewise {

/// With `deterministic` a sequence's result does not depend on the rest of the batch (CONTRACT 14).
/// The plan is then that of one entry with all its keys, whatever a list or a mask hides.
bool plans_one_entry(const Problem& problem);

/// The problem of one entry, where plans_one_entry(). Its pointers are not to be read.
Problem one_entry(const Problem& problem);

/// With packed sequences and `deterministic`, planning sees only batch totals, never one sequence's
/// length. So the first kernel that can run is taken, and keys are not split.
constexpr bool takes_first_kernel(const Problem& p) { return p.deterministic && p.packed; }

/// The batch that a threshold on a problem's size counts. 0: the problem is taken for small.
constexpr std::int64_t planned_batch(const Problem& p) {
  if (!p.deterministic) return p.batch;
  return p.packed ? 0 : 1;
}

}  // namespace tilewise
