/// Measures one cell of a grid: time, memory under a limit, and why it could not be measured.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench/grid.h"
#include "cli/shell/interrupt.h"
#include "harness/timer.h"

namespace tilewise::cli {

enum class Status : std::uint8_t { ok, oom, unsupported, timeout };

/// "ok", "oom", "unsupported", "timeout".
std::string_view status_name(Status status);

/// One timed pass of a cell; what a row of the report holds.
struct Measurement {
  Case problem;
  std::string implementation, kernel;
  Device device;
  Timed timed = Timed::forward;
  Protocol protocol = Protocol::sustained;
  int threads = 0;
  Status status = Status::ok;
  std::string reason;  ///< of another status than ok; of ok when fewer runs than asked for fitted
  Statistics ms;       ///< count 0 when not ok
  double flops = 0.0, bytes_moved = 0.0;
  std::int64_t live_bytes =
      0;  ///< alive between forward and backward: inputs, outputs, saved state
  std::int64_t peak_bytes = 0;  ///< most alive during the timed pass
  bool failed_check = false;    ///< --check found a deviation; `reason` says which
};

class CellRunner {
 public:
  struct Options {
    Device device;
    int threads = 1;
    std::int64_t limit_bytes = 0;
    double budget_s = 0.0;  ///< of a timed pass; 0 = none
    double total_s = 0.0;   ///< of all cells, from the runner's making on; 0 = none
    bool check = false;
    std::uint64_t seed = 1;
  };

  explicit CellRunner(Options options);

  /// The cell's passes in their order. Throws Interrupted; what the cell itself is to blame for
  /// becomes a status.
  std::vector<Measurement> run(const Cell& cell);

 private:
  class Attempt;

  /// The rest of total_s.
  double left_s() const;
  /// Empties the caches.
  void flush();

  Options options_;
  Hardware machine_;
  WatchedExecutor executor_;
  WatchedExecutor::Clock::time_point begin_;
  std::unique_ptr<Clock> clock_;
  std::function<void()> flusher_;
};

}  // namespace tilewise::cli
