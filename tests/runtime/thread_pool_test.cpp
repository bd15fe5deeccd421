#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cpu/cgroup.h"
#include "tilewise/error.h"
#include "tilewise/runtime.h"

namespace tilewise {
namespace {

TEST(ThreadPool, EveryTaskRunsOnce) {
  const auto pool = make_thread_pool(4);
  EXPECT_EQ(pool->concurrency(), 4);
  for (const std::int64_t tasks : {0, 1, 2, 3, 5, 64, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
    pool->parallel_for(tasks, [&](std::int64_t task, int worker) {
      EXPECT_GE(worker, 0);
      EXPECT_LT(worker, 4);
      runs[static_cast<std::size_t>(task)].fetch_add(1);
    });
    for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
  }
}

TEST(ThreadPool, ManyShortJobs) {
  const auto pool = make_thread_pool(3);
  std::int64_t total = 0;
  for (int job = 0; job < 3000; ++job) {
    std::atomic<std::int64_t> sum{0};
    pool->parallel_for(7, [&](std::int64_t task, int) { sum.fetch_add(task); });
    total += sum.load();
  }
  EXPECT_EQ(total, 3000 * 21);
}

TEST(ThreadPool, BodiesOfOneWorkerNeverOverlap) {
  const auto pool = make_thread_pool(4);
  std::vector<std::atomic<int>> inside(4);
  pool->parallel_for(400, [&](std::int64_t, int worker) {
    auto& count = inside[static_cast<std::size_t>(worker)];
    EXPECT_EQ(count.fetch_add(1), 0);
    std::this_thread::yield();
    count.fetch_sub(1);
  });
}

TEST(ThreadPool, WorkIsShared) {
  const auto pool = make_thread_pool(2);
  // Each body waits until the other one has started: one thread alone would never finish.
  std::atomic<int> started{0};
  pool->parallel_for(2, [&](std::int64_t, int) {
    started.fetch_add(1);
    while (started.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(started.load(), 2);
}

TEST(ThreadPool, SleepingWorkersWakeUp) {
  const auto pool = make_thread_pool(2);
  for (int job = 0; job < 3; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // past the spinning, mostly
    std::atomic<int> started{0};
    pool->parallel_for(2, [&](std::int64_t, int) {
      started.fetch_add(1);
      while (started.load() < 2) std::this_thread::yield();
    });
  }
}

TEST(ThreadPool, LowerTasksStartFirst) {
  const auto pool = make_thread_pool(3);
  std::mutex mutex;
  std::vector<std::vector<std::int64_t>> by_worker(3);
  pool->parallel_for(300, [&](std::int64_t task, int worker) {
    const std::lock_guard lock(mutex);
    by_worker[static_cast<std::size_t>(worker)].push_back(task);
  });
  for (const auto& tasks : by_worker) EXPECT_TRUE(std::is_sorted(tasks.begin(), tasks.end()));
}

/// C121: no pool inside a pool.
TEST(ThreadPool, NestedCallsRunOnTheCallingThread) {
  const auto pool = make_thread_pool(4);
  std::atomic<int> inner{0};
  pool->parallel_for(8, [&](std::int64_t, int) {
    const auto self = std::this_thread::get_id();
    pool->parallel_for(5, [&](std::int64_t, int worker) {
      EXPECT_EQ(worker, 0);
      EXPECT_EQ(std::this_thread::get_id(), self);
      inner.fetch_add(1);
    });
  });
  EXPECT_EQ(inner.load(), 40);
}

/// A pool that another thread uses as long as this lives.
class Occupied {
 public:
  explicit Occupied(Executor& pool)
      : user_([this, &pool] {
          pool.parallel_for(2, [this](std::int64_t, int) {
            in_use_.store(true);
            while (!let_go_.load()) std::this_thread::yield();
          });
        }) {
    while (!in_use_.load()) std::this_thread::yield();
  }
  Occupied(const Occupied&) = delete;
  Occupied& operator=(const Occupied&) = delete;
  ~Occupied() {
    let_go_.store(true);
    user_.join();
  }

 private:
  std::atomic<bool> in_use_{false}, let_go_{false};
  std::thread user_;
};

TEST(ThreadPool, CallsWhileInUseRunOnTheCallingThread) {
  const auto pool = make_thread_pool(2);
  const Occupied occupied(*pool);
  int runs = 0;
  const auto self = std::this_thread::get_id();
  pool->parallel_for(6, [&](std::int64_t, int) {
    EXPECT_EQ(std::this_thread::get_id(), self);
    ++runs;
  });
  EXPECT_EQ(runs, 6);
}

TEST(ThreadPool, ManyCallersAtOnce) {
  const auto pool = make_thread_pool(3);
  std::atomic<std::int64_t> total{0};
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int job = 0; job < 200; ++job) {
        pool->parallel_for(5, [&](std::int64_t task, int) { total.fetch_add(task); });
      }
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 4 * 200 * 10);
}

TEST(ThreadPool, AnExceptionComesBackAndThePoolStaysUsable) {
  const auto pool = make_thread_pool(3);
  const auto fail_at = [&](std::int64_t bad) {
    pool->parallel_for(50, [bad](std::int64_t task, int) {
      if (task == bad) throw std::runtime_error("task " + std::to_string(task));
    });
  };
  for (const std::int64_t bad : {0, 7, 49}) {
    try {
      fail_at(bad);
      ADD_FAILURE() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "task " + std::to_string(bad));
    }
  }
  std::atomic<int> runs{0};
  pool->parallel_for(50, [&](std::int64_t, int) { runs.fetch_add(1); });
  EXPECT_EQ(runs.load(), 50);
}

TEST(ThreadPool, RefusesImpossibleSizes) {
  EXPECT_THROW(make_thread_pool(0), InvalidArgument);
  EXPECT_THROW(make_thread_pool(-3), InvalidArgument);
  EXPECT_THROW(make_thread_pool(1 << 20), InvalidArgument);
}

/// Exit status of `child`, run in a forked process that is killed after minutes: it hangs.
template <class Child>
int status_in_fork(const Child& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(300);
    _exit(child());
  }
  int status = -1;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#if !defined(__SANITIZE_THREAD__)  // its runtime does not allow new threads after a fork
TEST(ThreadPool, AForkedChildHasThreadsOfItsOwn) {
  auto pool = make_thread_pool(2);
  const auto meet = [&] {
    std::atomic<int> started{0};
    pool->parallel_for(2, [&](std::int64_t, int) {
      started.fetch_add(1);
      while (started.load() < 2) std::this_thread::yield();
    });
    return started.load();
  };
  EXPECT_EQ(meet(), 2);
  EXPECT_EQ(status_in_fork([&] {
              const int met = meet() + meet();
              pool.reset();
              return met;
            }),
            4);
  EXPECT_EQ(meet(), 2);  // the parent's are still there
}

TEST(ThreadPool, AChildForkedWhileThePoolWorksDoesNotHang) {
  const auto pool = make_thread_pool(2);
  const Occupied occupied(*pool);
  EXPECT_EQ(status_in_fork([&] {
              std::atomic<int> runs{0};
              pool->parallel_for(9, [&](std::int64_t, int) { runs.fetch_add(1); });
              return runs.load();
            }),
            9);
}
#endif

constexpr const char* kFresh = "TILEWISE_TEST_FRESH_PROCESS";

/// default_executor() reads the environment once in a process: each case runs this very test in a
/// fresh one, which stops at its beginning and tells by its exit status.
int default_concurrency_with(const char* ours, const char* openmp) {
  return status_in_fork([&] {
    setenv(kFresh, "1", 1);
    ours == nullptr ? unsetenv("TILEWISE_NUM_THREADS") : setenv("TILEWISE_NUM_THREADS", ours, 1);
    openmp == nullptr ? unsetenv("OMP_NUM_THREADS") : setenv("OMP_NUM_THREADS", openmp, 1);
    dup2(open("/dev/null", O_WRONLY), 1);
    execl("/proc/self/exe", "test_cpu",
          "--gtest_filter=DefaultExecutor.ThreadsComeFromTheEnvironment", nullptr);
    return 1;
  });
}

[[noreturn]] void tell_default_concurrency() {
  try {
    _exit(default_executor().concurrency());
  } catch (const InvalidArgument&) {
    _exit(99);
  }
}

TEST(DefaultExecutor, ThreadsComeFromTheEnvironment) {
  if (std::getenv(kFresh) != nullptr) tell_default_concurrency();
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  const int quota = cpu::quota_cpus();
  const int cpus = quota > 0 ? std::min(CPU_COUNT(&set), quota) : CPU_COUNT(&set);
  EXPECT_EQ(default_concurrency_with(nullptr, nullptr), cpus);
  EXPECT_EQ(default_concurrency_with("3", nullptr), 3);
  EXPECT_EQ(default_concurrency_with("3", "5"), 3);
  EXPECT_EQ(default_concurrency_with(nullptr, "5"), 5);
  EXPECT_EQ(default_concurrency_with("", "6,2"), 6);
  EXPECT_EQ(default_concurrency_with(nullptr, "dynamic"), cpus);
  EXPECT_EQ(default_concurrency_with("0", nullptr), 99);
  EXPECT_EQ(default_concurrency_with("two", nullptr), 99);
  EXPECT_EQ(default_concurrency_with("4 threads", "2"), 99);
}

TEST(DefaultExecutor, IsOneForTheProcess) { EXPECT_EQ(&default_executor(), &default_executor()); }

TEST(DefaultAllocator, GivesAlignedMemory) {
  Allocator& allocator = default_allocator();
  for (const std::int64_t bytes :
       {std::int64_t{1}, std::int64_t{255}, std::int64_t{4097}, (std::int64_t{32} << 20) + 3}) {
    void* data = allocator.allocate(bytes, Device{}, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 256, 0U);
    static_cast<char*>(data)[0] = 1;
    static_cast<char*>(data)[bytes - 1] = 1;
    allocator.release(data, bytes, Device{}, nullptr);
  }
}

TEST(DefaultAllocator, RefusesWhatTheSystemHasNot) {
  Allocator& allocator = default_allocator();
  EXPECT_THROW(allocator.allocate(std::int64_t{1} << 60, Device{}, nullptr), OutOfMemory);
  EXPECT_THROW(allocator.allocate(16, Device{DeviceType::cuda, 0}, nullptr), DeviceError);
}

}  // namespace
}  // namespace tilewise
