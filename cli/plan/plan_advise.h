/// `plan --advise`: the precision and implementation to use at each length.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/grid.h"
#include "cli/machine/machines.h"
#include "cli/shell/table.h"

namespace tilewise::cli {

/// Over the lengths of `cells` (problems that differ in length only): the time of each arm, float32
/// and bf16, flash and eager, by the model or, where a result file of `measured` holds the problem,
/// measured; then the lengths at which the answer changes, beside seed 003's thresholds.
std::string advise(const std::vector<Cell>& cells, const Machine& machine,
                   const std::vector<std::string>& measured, Format format);

}  // namespace tilewise::cli
