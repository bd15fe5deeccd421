#include "harness/timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "cpu/micro/isa.h"

namespace tilewise {
namespace {

using SteadyClock = std::chrono::steady_clock;

double ms_since(SteadyClock::time_point start) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - start).count();
}

class CpuClock final : public Clock {
 public:
  void start() override { start_ = SteadyClock::now(); }
  double stop_ms() override { return ms_since(start_); }

 private:
  SteadyClock::time_point start_;
};

/// Value at rank `part` of the sorted values, in [0, 1].
double quantile(const std::vector<double>& sorted, double part) {
  const double rank = part * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(rank);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  const double weight = rank - static_cast<double>(low);
  return sorted[low] + weight * (sorted[high] - sorted[low]);
}

/// One measurement: knows when to stop.
class Session {
 public:
  Session(const TimedWork& work, const TimerOptions& options, Clock& clock)
      : work_(work), options_(options), clock_(clock), begin_(SteadyClock::now()) {}

  Timing run() {
    if (options_.protocol == Protocol::burst) {
      burst();
    } else {
      sustained();
    }
    timing_.ms = summarize(timing_.samples_ms);
    return std::move(timing_);
  }

 private:
  const TimedWork& work_;
  const TimerOptions& options_;
  Clock& clock_;
  SteadyClock::time_point begin_;
  Timing timing_;

  bool enough() const { return static_cast<int>(timing_.samples_ms.size()) >= options_.repeat; }

  bool stopped() {
    if (work_.interrupted && work_.interrupted()) timing_.interrupted = true;
    const bool late = options_.budget_s > 0.0 && ms_since(begin_) > options_.budget_s * 1e3;
    if (late && !enough()) timing_.out_of_budget = true;
    return timing_.interrupted || (late && !timing_.samples_ms.empty()) || enough();
  }

  void fresh_inputs(std::uint64_t round) {
    if (work_.fresh_inputs) work_.fresh_inputs(round);
  }

  void run_untimed() {
    clock_.start();
    work_.run();
    clock_.stop_ms();  // waits
  }

  void run_timed() {
    if (work_.flush) work_.flush();
    clock_.start();
    work_.run();
    timing_.samples_ms.push_back(clock_.stop_ms());
  }

  void sustained() {
    fresh_inputs(0);
    for (int n = 0; n < options_.warmup && !timing_.interrupted; ++n) {
      if (stopped_in_warmup(n)) break;
      run_untimed();
    }
    while (!stopped()) run_timed();
  }

  /// A budget that warm-up alone would use up still leaves one warm run and one timed one.
  bool stopped_in_warmup(int done) {
    if (work_.interrupted && work_.interrupted()) timing_.interrupted = true;
    const bool late = options_.budget_s > 0.0 && ms_since(begin_) > options_.budget_s * 1e3;
    return timing_.interrupted || (done > 0 && late);
  }

  void burst() {
    for (std::uint64_t round = 0; !stopped(); ++round) {
      fresh_inputs(round);
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(options_.idle_ms));
      run_untimed();
      for (int n = 0; n < options_.round && !stopped(); ++n) run_timed();
    }
  }
};

}  // namespace

Statistics summarize(std::span<const double> values) {
  Statistics s;
  s.count = static_cast<std::int64_t>(values.size());
  if (values.empty()) return s;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  s.mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(s.count);
  double squares = 0.0;
  for (double value : sorted) squares += (value - s.mean) * (value - s.mean);
  if (s.count > 1) s.stddev = std::sqrt(squares / static_cast<double>(s.count - 1));
  s.min = sorted.front();
  s.max = sorted.back();
  s.median = quantile(sorted, 0.5);
  s.p10 = quantile(sorted, 0.1);
  s.p90 = quantile(sorted, 0.9);
  return s;
}

std::unique_ptr<Clock> cpu_clock() { return std::make_unique<CpuClock>(); }

std::string_view protocol_name(Protocol protocol) {
  return protocol == Protocol::burst ? "burst" : "sustained";
}

Timing measure(const TimedWork& work, const TimerOptions& options, Clock& clock) {
  return Session(work, options, clock).run();
}

CacheFlusher::CacheFlusher()
    : buffer_(static_cast<std::size_t>(2 * cpu::last_level_cache_bytes())) {}

void CacheFlusher::operator()() {
  for (std::size_t n = 0; n < buffer_.size(); n += 64) {
    volatile unsigned char& line = buffer_[n];
    line = static_cast<unsigned char>(line + 1);
  }
}

}  // namespace tilewise
