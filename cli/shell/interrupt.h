/// Ctrl-C and deadlines: both stop the work between two tasks of a parallel region, so that even
/// one long run gives way at once and what was measured before it is kept.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tilewise/runtime.h"

namespace tilewise::cli {

/// From here on the first Ctrl-C or SIGTERM is noted instead of ending the process; another one,
/// half a second later or more, ends it. Work that has not asked interrupted() within a second is
/// left where it is: the process ends with kInterrupted.
void catch_interrupts();
/// What such an end does first: to write what is known. It runs beside the work that was left,
/// which goes no further than to its next question.
void set_last_words(std::function<void()> words);
bool interrupted();

/// Work of many parts that a Ctrl-C may end: catches interrupts, and what is finished is written
/// however it ends.
class LongWork {
 public:
  /// `write`: all that is finished; `how_far`: "2 of 7 cells".
  LongWork(std::function<void()> write, std::function<std::string()> how_far);
  ~LongWork() { set_last_words({}); }
  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;

  /// Writes. The exit code: kDone, or kInterrupted once it has said how far it came.
  int end(bool stopped) const;

 private:
  std::function<void()> write_;
  std::function<std::string()> how_far_;
};

/// Throws Interrupted after a Ctrl-C or SIGTERM.
void throw_if_interrupted();

/// Runs on a pool of its own; a task that begins after a Ctrl-C or past the deadline throws
/// Interrupted or TimedOut in its place.
class WatchedExecutor final : public Executor {
 public:
  using Clock = std::chrono::steady_clock;

  explicit WatchedExecutor(int threads) : pool_(make_thread_pool(threads)) {}
  int concurrency() const override { return pool_->concurrency(); }
  void parallel_for(std::int64_t tasks, const Body& body) override;

  /// No deadline when not given.
  void set_deadline(std::optional<Clock::time_point> deadline) { deadline_ = deadline; }

 private:
  void check() const;

  std::unique_ptr<Executor> pool_;
  std::optional<Clock::time_point> deadline_;
};

}  // namespace tilewise::cli
