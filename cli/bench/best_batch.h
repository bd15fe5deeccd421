/// The batch size of best throughput under a memory budget: `bench --best-batch`.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/cell_runner.h"
#include "cli/shell/table.h"

namespace tilewise::cli {

/// Throughput over the batch size, of one cell's problem and implementation.
struct BatchCurve {
  Cell cell;
  std::int64_t largest = 0;  ///< batch that fits, by the plan, exactly
  std::string next_reason;   ///< why one more does not
  struct Point {
    std::int64_t batch = 0;
    double ms = 0.0;      ///< median, all timed passes together
    double std_ms = 0.0;  ///< standard deviation, those of the passes added
    std::int64_t peak_bytes = 0;
    double per_second() const { return 1e3 * static_cast<double>(batch) / ms; }
  };
  std::vector<Point> points;
  std::size_t best = 0;  ///< the smallest batch within 2 % of the best throughput
};

/// Measures batches of 1, 2, 4, ... up to the largest that fits, the first once more before them to
/// warm up. Ends after four doublings in a row that gain less than 2 % beyond their spread. Throws
/// what CellRunner throws; Unsupported when no batch runs.
BatchCurve measure_batches(const Cell& cell, CellRunner& runner, const Hardware& machine,
                           std::int64_t limit_bytes);

std::string batch_report(const std::vector<BatchCurve>& curves, Format format);

}  // namespace tilewise::cli
