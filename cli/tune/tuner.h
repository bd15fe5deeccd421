/// Tuner: measures every kernel and form that could run a problem, beside each other.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cli/bench/grid.h"
#include "cli/shell/interrupt.h"
#include "plan/tuning.h"

namespace tilewise::cli {

/// A pass of a problem, and what came out.
struct TunedPass {
  Case problem;
  Pass pass = Pass::forward;
  std::string key;     ///< tuning_key(); empty where nothing is tuned
  std::string reason;  ///< why nothing was measured; empty when it was
  Winner winner;
  std::string model_kernel;  ///< what the model takes
  Form model_form;
  int measured = 0, forms = 0;
};

class Tuner {
 public:
  struct Options {
    Device device;
    int threads = 1;
    std::int64_t limit_bytes = 0;
    double seconds = 1.0;  ///< of a pass
    std::uint64_t seed = 1;
  };

  explicit Tuner(const Options& options);

  using Keep = std::function<void(TunedPass)>;
  /// Hands each of the cell's passes to `keep` as it is done. Throws Interrupted; what does not fit
  /// or is not supported becomes a reason.
  void run(const Cell& cell, const Keep& keep);

 private:
  class Trial;

  Options options_;
  Hardware machine_;
  WatchedExecutor executor_;
  std::unique_ptr<Clock> clock_;
};

}  // namespace tilewise::cli
