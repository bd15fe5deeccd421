/// The output of `plan` for planned cells.
#pragma once

#include <string>
#include <vector>

#include "cli/machine/machines.h"
#include "cli/plan/plan_cells.h"
#include "cli/plan/plan_limits.h"
#include "cli/shell/table.h"

namespace tilewise::cli {

/// A row a pass: kernel, work, bounds, time, memory, verdict. `limits` adds what fits and helps.
Table overview(const std::vector<Planned>& plans, const Hardware& machine, std::int64_t limit_bytes,
               bool limits);

/// A row for each plan and a column for each tensor that one of them holds, in bytes or MiB.
Table tensor_table(const std::vector<Planned>& plans, bool in_bytes);

/// Everything about one cell, for people.
std::string cell_report(const Cell& cell, const std::vector<Planned>& plans, const Machine& machine,
                        std::int64_t limit_bytes);

}  // namespace tilewise::cli
