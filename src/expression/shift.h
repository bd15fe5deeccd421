/// How far a score function may move whole rows of scores, found before a launch.
#pragma once

#include "expression/affine.h"
#include "expression/bounds.h"
#include "expression/program.h"

namespace tilewise::expression {

/// The largest |result| for a score of 0, over all pairs. Infinite where a captured real decides
/// it, or where nothing bounds it.
double largest_shift(const Program& score, const Domain& domain);

/// The largest |sum of the terms| of a row at its best key. Captured distance and ahead count as
/// slopes that fall from the diagonal; other captured coefficients have no bound. `sees_diagonal`:
/// every row sees the key at distance 0, and no key behind it if `causal`.
double largest_shift(const Affine& affine, const Domain& domain, bool sees_diagonal, bool causal);

}  // namespace tilewise::expression
