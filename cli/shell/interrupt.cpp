#include "cli/shell/interrupt.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "cli/shell/failure.h"

namespace tilewise::cli {
namespace {

/// Signals this near to the first are the same wish: `timeout` sends its own twice, to the process
/// and to its group.
constexpr std::int64_t kSameWishNs = 500'000'000;

/// Work that has not noticed a signal after this long is left where it is: a task of a plain
/// matrix product may take half a minute.
constexpr std::chrono::milliseconds kPatience{800};

std::atomic<std::int64_t> g_interrupted_ns{0};  ///< when the first signal came; 0: none yet
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "a signal handler sets it");
int g_pipe[2] = {-1, -1};  ///< a byte for the first signal

/// Who ends the program: the work, which has noticed, or the watcher, which left it.
enum class Leaving : int { nobody, work, watcher };
std::atomic<Leaving> g_leaving{Leaving::nobody};

std::mutex g_mutex;
std::function<void()> g_last_words;

/// The work has noticed. If it was left already, it has nothing more to do.
void notice() {
  Leaving leaving = Leaving::nobody;
  if (g_leaving.compare_exchange_strong(leaving, Leaving::work)) return;
  while (leaving == Leaving::watcher) ::pause();
}

void watch() {
  char byte = 0;
  while (::read(g_pipe[0], &byte, 1) < 0 && errno == EINTR) {
  }
  std::this_thread::sleep_for(kPatience);
  Leaving leaving = Leaving::nobody;
  if (!g_leaving.compare_exchange_strong(leaving, Leaving::watcher)) return;
  try {
    const std::scoped_lock lock(g_mutex);
    if (g_last_words) g_last_words();
    complain(Interrupted().what());
  } catch (...) {
    report_failure();
  }
  std::fflush(nullptr);
  ::_exit(kInterrupted);
}

extern "C" void note_interrupt(int signal) {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);  // what a handler may call
  const std::int64_t now = time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
  std::int64_t first = 0;
  if (g_interrupted_ns.compare_exchange_strong(first, now)) {
    const int before = errno;
    [[maybe_unused]] const ssize_t written = ::write(g_pipe[1], "", 1);
    errno = before;
    return;
  }
  if (now - first < kSameWishNs) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void catch_interrupts() {
  if (g_pipe[0] < 0 && ::pipe2(g_pipe, O_CLOEXEC) == 0) std::thread(watch).detach();
  std::signal(SIGINT, note_interrupt);
  std::signal(SIGTERM, note_interrupt);
}

void set_last_words(std::function<void()> words) {
  const std::scoped_lock lock(g_mutex);
  g_last_words = std::move(words);
}

LongWork::LongWork(std::function<void()> write, std::function<std::string()> how_far)
    : write_(std::move(write)), how_far_(std::move(how_far)) {
  catch_interrupts();
  set_last_words([this] {
    write_();
    complain("interrupted after " + how_far_());
  });
}

int LongWork::end(bool stopped) const {
  set_last_words({});
  write_();
  if (!stopped) return kDone;
  complain("interrupted after " + how_far_());
  return kInterrupted;
}

bool interrupted() {
  if (g_interrupted_ns == 0) return false;
  notice();
  return true;
}

void throw_if_interrupted() {
  if (interrupted()) throw Interrupted();
}

void WatchedExecutor::check() const {
  throw_if_interrupted();
  if (deadline_ && Clock::now() > *deadline_) throw TimedOut("the time for this cell is used up");
}

void WatchedExecutor::parallel_for(std::int64_t tasks, const Body& body) {
  check();
  pool_->parallel_for(tasks, [&](std::int64_t task, int worker) {
    check();
    body(task, worker);
  });
}

}  // namespace tilewise::cli
