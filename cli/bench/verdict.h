/// What implementations measured side by side say, in words: speed, memory, what ran out of it,
/// where it became slower, what follows and what to do next.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/cell_runner.h"

namespace tilewise::cli {

/// Markdown: a list for every implementation after the first, against the first. Empty for one.
std::string verdicts(const std::vector<Measurement>& rows);

}  // namespace tilewise::cli
