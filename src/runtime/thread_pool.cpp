/// The thread pool behind the default executor. (runtime.h)
///
/// Worker threads start with the first parallel_for. Between jobs they spin for some microseconds,
/// then sleep on `signal`. A job is open while its caller has not finished: a worker that wakes up
/// in time enters the job, takes task numbers from one counter and leaves; one that wakes up late
/// finds the gate closed and goes back to sleep, so that no job waits for a thread that the system
/// has not scheduled.
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cpu/cgroup.h"
#include "tilewise/error.h"
#include "tilewise/runtime.h"

namespace tilewise {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kSpins = 1000;  ///< of a pause instruction: some tens of microseconds

inline void pause_briefly() { __builtin_ia32_pause(); }

/// CPUs that this process may run on.
int affinity_count() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

/// Those, or what a container's quota leaves of them.
int usable_cpus() {
  const int quota = cpu::quota_cpus();
  return quota > 0 ? std::min(affinity_count(), quota) : affinity_count();
}

/// Counts the forks that led to this process: a pool whose threads stayed behind in the parent
/// notices by it.
std::atomic<std::uint32_t> fork_count{0};

std::uint32_t current_fork() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1); });
  static_cast<void>(registered);
  return fork_count.load(std::memory_order_relaxed);
}

/// Blocks all signals for its lifetime: threads started meanwhile leave them to the caller's own
/// threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// The worker threads of a pool and the job that they share with the caller (worker 0).
class Crew {
 public:
  explicit Crew(int workers) {
    const SignalsBlocked blocked;
    threads_.reserve(static_cast<std::size_t>(workers));
    try {
      for (int w = 1; w <= workers; ++w) threads_.emplace_back([this, w] { work(w); });
    } catch (const std::system_error&) {
      // The system gives no more threads: those that there are do the work.
    }
  }

  ~Crew() {
    stopping_.store(true);
    wake(static_cast<std::int64_t>(threads_.size()));
    for (std::thread& thread : threads_) thread.join();
  }

  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  void run(std::int64_t tasks, const Executor::Body& body) {
    tasks_ = tasks;
    body_ = &body;
    error_ = nullptr;
    failed_.store(false, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    gate_.store(kOpen, std::memory_order_release);  // publishes the job to those who enter()
    wake(std::min(tasks, cpus_) - 1);
    take_tasks(0);
    close_and_wait();
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  static constexpr std::uint32_t kOpen = 1;     ///< bit 0 of gate_
  static constexpr std::uint32_t kEntered = 2;  ///< the other bits count the workers inside

  void wake(std::int64_t wanted) {
    signal_.fetch_add(1, std::memory_order_release);
    if (wanted >= static_cast<std::int64_t>(threads_.size())) {
      signal_.notify_all();
    } else {
      for (std::int64_t i = 0; i < wanted; ++i) signal_.notify_one();
    }
  }

  void work(int worker) {
    pthread_setname_np(pthread_self(), "tilewise");
    std::uint32_t seen = 0;
    while (true) {
      seen = wait_for_signal(seen);
      if (stopping_.load()) return;
      if (!enter()) continue;
      take_tasks(worker);
      leave();
    }
  }

  std::uint32_t wait_for_signal(std::uint32_t seen) {
    for (int i = 0; i < kSpins; ++i) {
      if (signal_.load(std::memory_order_acquire) != seen) break;
      pause_briefly();
    }
    std::uint32_t now = signal_.load(std::memory_order_acquire);
    while (now == seen) {
      signal_.wait(seen, std::memory_order_acquire);
      now = signal_.load(std::memory_order_acquire);
    }
    return now;
  }

  bool enter() {
    std::uint32_t gate = gate_.load(std::memory_order_relaxed);
    while ((gate & kOpen) != 0) {
      if (gate_.compare_exchange_weak(gate, gate + kEntered, std::memory_order_acq_rel)) {
        return true;
      }
    }
    return false;
  }

  void leave() {
    // The last one out of a closed job tells the caller.
    if (gate_.fetch_sub(kEntered, std::memory_order_acq_rel) == kEntered) gate_.notify_one();
  }

  void close_and_wait() {
    std::uint32_t gate = gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    for (int i = 0; gate != 0; ++i) {
      if (i < kSpins) {
        pause_briefly();
      } else {
        gate_.wait(gate, std::memory_order_acquire);
      }
      gate = gate_.load(std::memory_order_acquire);
    }
  }

  void take_tasks(int worker) {
    try {
      for (std::int64_t task = next_.fetch_add(1, std::memory_order_relaxed); task < tasks_;
           task = next_.fetch_add(1, std::memory_order_relaxed)) {
        (*body_)(task, worker);
      }
    } catch (...) {
      next_.store(tasks_, std::memory_order_relaxed);  // nobody starts another task
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
  }

  /// A worker woken beyond these only takes another's place on a CPU.
  const std::int64_t cpus_ = usable_cpus();
  std::int64_t tasks_ = 0;
  const Executor::Body* body_ = nullptr;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
  alignas(64) std::atomic<std::uint32_t> signal_{0};
  alignas(64) std::atomic<std::uint32_t> gate_{0};
  alignas(64) std::atomic<std::int64_t> next_{0};
};

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads) : concurrency_(threads), state_(current_fork() << 1) {}

  ~ThreadPool() override {
    // After a fork the threads are the parent's: nothing to join, and the crew is left as it lies.
    if (state_.load() >> 1 == current_fork()) delete crew_;
  }

  int concurrency() const override { return concurrency_; }

  void parallel_for(std::int64_t tasks, const Body& body) override {
    if (tasks <= 0) return;
    if (tasks == 1 || concurrency_ == 1 || !acquire()) {
      for (std::int64_t task = 0; task < tasks; ++task) body(task, 0);
      return;
    }
    struct Release {
      std::atomic<std::uint32_t>& state;
      ~Release() { state.fetch_and(~kBusy, std::memory_order_release); }
    } const release{state_};
    if (crew_ == nullptr) crew_ = new Crew(concurrency_ - 1);
    crew_->run(tasks, body);
  }

 private:
  static constexpr std::uint32_t kBusy = 1;

  /// False when a job of this pool is under way: on another thread, or around this very call.
  bool acquire() {
    const std::uint32_t idle = current_fork() << 1;
    std::uint32_t state = state_.load(std::memory_order_relaxed);
    if (state == (idle | kBusy)) return false;
    if (!state_.compare_exchange_strong(state, idle | kBusy, std::memory_order_acquire)) {
      return false;  // another thread was faster
    }
    if (state != idle) crew_ = nullptr;  // forked since: its threads stayed in the parent
    return true;
  }

  const int concurrency_;
  /// The fork in which the crew was started, and whether it is at work.
  std::atomic<std::uint32_t> state_;
  Crew* crew_ = nullptr;  ///< started by the first job; belongs to the call that set kBusy
};

/// A whole positive number at the start of `text`; 0 when there is none. `rest` says whether more
/// may follow.
int leading_number(const char* text, bool rest) {
  const char* end = text + std::strlen(text);
  int value = 0;
  const auto [at, error] = std::from_chars(text, end, value);
  if (error != std::errc{} || value < 1) return 0;
  return rest || at == end ? value : 0;
}

int default_threads() {
  if (const char* text = std::getenv("TILEWISE_NUM_THREADS"); text != nullptr && *text != '\0') {
    const int threads = leading_number(text, false);
    if (threads == 0 || threads > kMaxThreads) {
      throw InvalidArgument("TILEWISE_NUM_THREADS is \"" + std::string(text) +
                            "\": expected an integer from 1 to " + std::to_string(kMaxThreads));
    }
    return threads;
  }
  // Not ours to judge: OpenMP also takes lists ("8,2": the first is the outer level's).
  if (const char* text = std::getenv("OMP_NUM_THREADS"); text != nullptr) {
    if (const int threads = leading_number(text, true); threads > 0) {
      return std::min(threads, kMaxThreads);
    }
  }
  return std::min(usable_cpus(), kMaxThreads);
}

/// Keeps the code of this library mapped after a dlclose: the default pool's threads run it until
/// the process ends.
void stay_loaded() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&default_executor), &info) != 0) {
    dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

}  // namespace

Executor::~Executor() = default;

std::unique_ptr<Executor> make_thread_pool(int threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw InvalidArgument("make_thread_pool: threads = " + std::to_string(threads) +
                          ": expected 1 to " + std::to_string(kMaxThreads));
  }
  return std::make_unique<ThreadPool>(threads);
}

Executor& default_executor() {
  // Never destroyed: at exit another thread may still be inside parallel_for.
  static ThreadPool& pool = *[] {
    auto* made = new ThreadPool(default_threads());
    stay_loaded();
    return made;
  }();
  return pool;
}

}  // namespace tilewise
