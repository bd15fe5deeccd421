/// The output of `bench`: rows of the JSON schema, and tables for people.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/cell_runner.h"
#include "cli/bench/grid.h"
#include "cli/shell/table.h"
#include "harness/environment.h"

namespace tilewise::cli {

inline constexpr int kSchemaVersion = 1;

/// A measurement with the fields of the schema, in its order.
Table cells_table(const std::vector<Measurement>& rows);

/// The seeds' columns: a row for each problem, forward and backward side by side.
Table seed_table(const std::vector<Measurement>& rows);

/// A row for each length and dim, and columns for each implementation.
Table compare_table(const std::vector<Measurement>& rows);

/// The whole report in a format. JSON always holds the rows of the schema.
std::string bench_report(const std::vector<Measurement>& rows, View view, Format format,
                         const Environment& environment);

}  // namespace tilewise::cli
