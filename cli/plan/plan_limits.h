/// The largest sizes that fit, and the changes that would help.
#pragma once

#include <string>
#include <vector>

#include "cli/plan/plan_cells.h"

namespace tilewise::cli {

/// The largest value of one size with which a cell still fits.
struct Largest {
  std::string size;         ///< "length", "batch", "heads"
  std::int64_t value = 0;   ///< 0: not even 1 fits
  std::string next_reason;  ///< why one more does not: memory, or a kernel's refusal
};

/// Largest length, batch and head count (those of the case growing together where it has two) under
/// the limit, each with the other sizes as they are. Exact: found by bisection of the plan's own
/// bytes, which grow with each size. Empty for packed and paged problems and those with lengths.
std::vector<Largest> largest_that_fit(const Cell& cell, const Hardware& machine,
                                      std::int64_t limit_bytes);

/// Something that the caller could change.
struct Help {
  std::string what;
  double ms = 0.0;    ///< predicted, for the cell's own amount of work
  double gain = 1.0;  ///< of its time for the same work
  std::int64_t peak_bytes = 0;
};

/// The changes that the model prices, best first: another type, precision, implementation, a larger
/// batch, what the caller asked for that costs time. Of a problem that is out of memory: the
/// changes that make it fit, the smallest peak first.
std::vector<Help> what_helps(const Cell& cell, const Hardware& machine, std::int64_t limit_bytes);

}  // namespace tilewise::cli
