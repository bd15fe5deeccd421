/// Two result files beside each other: `bench --compare OLD NEW`.
#pragma once

#include <string>

#include "cli/shell/table.h"

namespace tilewise::cli {

struct Comparison {
  Table table;          ///< a row for each problem, pass and implementation that both have
  int faster = 0;       ///< beyond the bound and beyond both runs' noise
  int slower = 0;       ///< the same the other way: regressions, with what no longer runs
  int only_one = 0;     ///< rows that only one of the files has
  std::string caution;  ///< that the machines differ, if they do
};

/// Reads and compares. A time has changed when the medians differ by more than `bound` (1.05: 5 %)
/// and by more than twice the spread of both files' runs; memory when its peak grew by more than
/// the bound. Throws BadInput for files that are no results of `bench`.
Comparison compare_results(const std::string& old_path, const std::string& new_path, double bound);

/// Table, counts and caution for people; the table alone as CSV and JSON.
std::string comparison_text(const Comparison& comparison, Format format);

}  // namespace tilewise::cli
