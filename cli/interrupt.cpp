#include "cli/interrupt.h"

#include <atomic>
#include <csignal>

#include "cli/failure.h"

namespace tilewise::cli {
namespace {

std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");

extern "C" void note_interrupt(int signal) {
  g_interrupted = true;
  std::signal(signal, SIG_DFL);
}

}  // namespace

void catch_interrupts() { std::signal(SIGINT, note_interrupt); }

bool interrupted() { return g_interrupted; }

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
