/// What may choose a kernel, its tiles and its parts: all of them decide bits.
#pragma once

#include "problem/problem.h"

namespace tilewise {

/// With `deterministic` a sequence's result does not depend on the rest of the batch (CONTRACT 14):
/// then the choice is that for one entry with all its keys.
constexpr bool is_decided_alone(const Problem& p) {
  return p.deterministic && !p.packed && (p.batch > 1 || p.key_lengths.defined());
}

/// The problem of one entry, for is_decided_alone(); pointers are not to be read.
Problem decisive(const Problem& problem);

/// Packed sequences with `deterministic`: a sequence is told nothing but its batch, so that the
/// first choice that can run is taken and keys are not split.
constexpr bool takes_the_first(const Problem& p) { return p.deterministic && p.packed; }

/// What a threshold on the size of a problem counts of its batch; 0: it is taken for small.
constexpr std::int64_t decisive_batch(const Problem& p) {
  if (!p.deterministic) return p.batch;
  return p.packed ? 0 : 1;
}

}  // namespace tilewise
