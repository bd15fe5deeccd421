/// What the spec says of lengths: packed sequences, pages, keys of each entry.
#pragma once

#include "problem/problem.h"

namespace tilewise {

/// Each sets its part of a problem whose sizes are those of the tensors. InvalidArgument names the
/// argument; values are judged where the host can read them.
void take_packed(Problem& problem, const AttentionSpec& spec);
void take_paged(Problem& problem, const AttentionSpec& spec);
/// After take_paged(), which says how many keys there may be.
void take_key_lengths(Problem& problem, const AttentionSpec& spec);

}  // namespace tilewise
