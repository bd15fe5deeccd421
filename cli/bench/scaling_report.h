/// Seed 002's questions: how time and memory grow along each dimension, and what flash gains, each
/// claim beside the measurement.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/cell_runner.h"

namespace tilewise::cli {

/// Tables of the sequence, batch, head and head-dim sweeps among the rows, with the measured
/// exponents. The claims come from cases/seeds_published.json.
std::string scaling_markdown(const std::vector<Measurement>& rows);

/// Slope of log(y) over log(x) by least squares; 0 for fewer than two points.
double log_slope(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace tilewise::cli
