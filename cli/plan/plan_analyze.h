/// Seed 002's questions: how memory, accesses and time grow along each size. `plan --analyze`.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/grid.h"
#include "cli/machine/machines.h"
#include "cli/shell/table.h"

namespace tilewise::cli {

/// Tables around one problem, for each implementation: `cells` differ in nothing else. JSON: an
/// object of arrays, one a table.
std::string analyze(const std::vector<Cell>& cells, const Machine& machine, Format format);

}  // namespace tilewise::cli
