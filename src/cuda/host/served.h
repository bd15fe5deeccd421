/// What the host knows of keys whose lengths are on the device, and what follows for plans.
#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace tilewise::cuda::host {

/// Queries of a decoding step: the token and a few that were guessed.
constexpr std::int64_t kFewQueries = 8;

/// Keys of the longest entry that some query may see.
std::int64_t most_keys(const Problem& problem);
/// Keys that all entries may have: of pages no more than the pools hold, of a cache side by side
/// with lengths half as many as it has room for.
double all_keys(const Problem& problem);
/// Whether lengths must differ: pools hold fewer keys than entries of the longest length would
/// have.
bool is_ragged(const Problem& problem);
/// Keys of the longest entry where pools have their share for all: tables are wider than lengths.
double likely_most_keys(const Problem& problem);

}  // namespace tilewise::cuda::host
