/// Planned cells of a grid, and what bounds their time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/bench/grid.h"
#include "tilewise/plan.h"

namespace tilewise::cli {

/// The least times that a pass can take on a machine, each as if it were the only bound: peak
/// rates, and bytes that no cache can save. Beside them what the pass's own bytes and products take
/// at sustained rates, which tells what it waits for.
struct Bounds {
  double launch_ms = 0.0;   ///< to start one kernel
  double memory_ms = 0.0;   ///< to move its tensors and saved matrices through memory once
  double compute_ms = 0.0;  ///< to do its products at the rate of the multiprocessors it fills
  double counted_memory_ms = 0.0, counted_compute_ms = 0.0;
  double filled = 1.0;     ///< share of the multiprocessors or threads that have work
  double intensity = 0.0;  ///< FLOP for each byte moved
  double ridge = 0.0;      ///< intensity from which this machine is bound by arithmetic

  /// "launch", "memory" or "compute": the largest, as counted.
  std::string_view verdict() const;
  double least_ms() const;  ///< the largest of the three bounds
};

Bounds bounds_of(const Plan& plan, const Case& problem, const Hardware& machine);

/// One pass of one cell: its plan, or why there is none.
struct Planned {
  Cell cell;
  Pass pass = Pass::forward;
  std::optional<Plan> plan;
  std::string refusal;  ///< with oom: it needs more than can be counted
  Bounds bounds;
  bool oom = false;  ///< this pass or the cell's other one needs more memory than there may be

  const char* verdict() const { return oom ? "oom" : plan ? "ok" : "unsupported"; }
};

/// The passes that the cell times; fwd+bwd is both of them.
std::vector<Planned> plan_cell(const Cell& cell, const Hardware& machine, std::int64_t limit_bytes);

/// Largest peak of the cell's passes, in bytes; none when a pass has no kernel.
std::optional<std::int64_t> peak_bytes(const Cell& cell, const Hardware& machine);

/// Predicted milliseconds of all its passes; none when a pass has no kernel.
std::optional<double> predicted_ms(const Cell& cell, const Hardware& machine);

}  // namespace tilewise::cli
