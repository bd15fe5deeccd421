/// Seed 002's questions: how memory, accesses and time grow along each size. `plan --analyze`.
#pragma once

#include <string>
#include <vector>

#include "cli/grid.h"
#include "cli/machines.h"
#include "cli/table.h"

namespace tilewise::cli {

/// Tables around one problem, for each implementation: `cells` differ in nothing else. JSON: an
/// object of arrays, one a table.
std::string analyze(const std::vector<Cell>& cells, const Machine& machine, Format format);

}  // namespace tilewise::cli
