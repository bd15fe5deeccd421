#include "cli/shell/interrupt.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

#include "cli/shell/failure.h"

namespace tilewise::cli {
namespace {

/// Signals this near to the first are the same wish: `timeout` sends its own twice, to the process
/// and to its group.
constexpr std::int64_t kSameWishNs = 500'000'000;

std::atomic<std::int64_t> g_interrupted_ns{0};  ///< when the first signal came; 0: none yet
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "a signal handler sets it");

extern "C" void note_interrupt(int signal) {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);  // what a handler may call
  const std::int64_t now = time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
  std::int64_t first = 0;
  if (g_interrupted_ns.compare_exchange_strong(first, now) || now - first < kSameWishNs) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void catch_interrupts() {
  std::signal(SIGINT, note_interrupt);
  std::signal(SIGTERM, note_interrupt);
}

bool interrupted() { return g_interrupted_ns != 0; }

void throw_if_interrupted() {
  if (interrupted()) throw Interrupted();
}

void WatchedExecutor::check() const {
  throw_if_interrupted();
  if (deadline_ && Clock::now() > *deadline_) throw TimedOut("the time for this cell is over");
}

void WatchedExecutor::parallel_for(std::int64_t tasks, const Body& body) {
  check();
  pool_->parallel_for(tasks, [&](std::int64_t task, int worker) {
    check();
    body(task, worker);
  });
}

}  // namespace tilewise::cli
