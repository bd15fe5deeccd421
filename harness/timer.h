/// The one timer: warm-up, repeats, a time budget, fresh inputs between rounds, cache flush,
/// statistics.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace tilewise {

/// Order statistics interpolate linearly between ranks.
struct Statistics {
  std::int64_t count = 0;
  double mean = 0.0;
  double stddev = 0.0;  ///< of the sample (n - 1); 0 for fewer than two
  double median = 0.0;
  double min = 0.0, max = 0.0;
  double p10 = 0.0, p90 = 0.0;
};

Statistics summarize(std::span<const double> values);

/// Measures one stretch of work. The CPU's reads the steady clock; a GPU's records events.
class Clock {
 public:
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  virtual ~Clock() = default;
  virtual void start() = 0;
  /// Milliseconds since start(), after all work since then is done.
  virtual double stop_ms() = 0;
};

std::unique_ptr<Clock> cpu_clock();

/// The schedule of runs.
enum class Protocol : std::uint8_t {
  burst,  ///< rounds of: idle gap, fresh inputs, one warm run, three timed runs. A cool machine's
          ///< speed
  sustained,  ///< back to back. A busy machine's speed
};

/// "burst" or "sustained".
std::string_view protocol_name(Protocol protocol);

struct TimerOptions {
  Protocol protocol = Protocol::sustained;
  int warmup = 5;
  int repeat = 100;  ///< timed runs
  double budget_s =
      0.0;  ///< stop after this much time in all, but not before one timed run; 0 = no limit
  double idle_ms = 40.0;  ///< burst: gap before each round
  int round = 3;          ///< burst: timed runs of a round
};

/// The functions to time. Only `run` is required.
struct TimedWork {
  std::function<void()> run;
  std::function<void(std::uint64_t round)>
      fresh_inputs;                   ///< before warm-up and before each burst round
  std::function<void()> flush;        ///< before each timed run: empties the caches
  std::function<bool()> interrupted;  ///< true: stop now and keep what there is
};

struct Timing {
  Statistics ms;
  std::vector<double> samples_ms;
  bool out_of_budget = false;  ///< fewer than `repeat` runs fitted
  bool interrupted = false;
};

/// Exceptions of the work pass through.
Timing measure(const TimedWork& work, const TimerOptions& options, Clock& clock);

/// Empties the CPU's last-level cache by writing a buffer of twice its size.
class CacheFlusher {
 public:
  CacheFlusher();
  void operator()();
  std::int64_t bytes() const { return static_cast<std::int64_t>(buffer_.size()); }

 private:
  std::vector<unsigned char> buffer_;
};

}  // namespace tilewise
