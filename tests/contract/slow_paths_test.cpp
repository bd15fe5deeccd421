/// What makes attention slow on a CPU, counted and not timed: workers without work (C119), scores
/// that nobody sees (C120).
#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>

#include "contract/harness.h"

namespace tilewise::contract {
namespace {

/// An executor whose workers take turns: a worker's time is the work that it said it has done, and
/// whoever has least goes on. So who takes which task does not depend on the machine.
class TurnTaker : public Executor {
 public:
  explicit TurnTaker(int workers) : workers_(workers) {}
  int concurrency() const override { return workers_; }

  void parallel_for(std::int64_t tasks, const Body& body) override {
    clocks_.assign(static_cast<std::size_t>(workers_), 0);
    std::int64_t next = 0;
    std::vector<std::thread> threads;
    std::int64_t longest = 0;
    for (int worker = 0; worker < workers_; ++worker) {
      threads.emplace_back([&, worker] {
        me_ = static_cast<std::size_t>(worker);
        spend(0);
        for (std::int64_t task = next++; task < tasks; task = next++) body(task, worker);
        const std::lock_guard lock(mutex_);
        longest = std::max(longest, clocks_[me_]);
        clocks_[me_] = kDone;
        turn_.notify_all();
      });
    }
    for (std::thread& thread : threads) thread.join();
    elapsed_ += longest;
  }

  /// `work` more is done by the calling worker; returns when its turn comes again.
  void spend(std::int64_t work) {
    std::unique_lock lock(mutex_);
    work_ += work;
    clocks_[me_] += work;
    turn_.notify_all();
    turn_.wait(lock, [&] {
      const auto least = std::min_element(clocks_.begin(), clocks_.end());
      return static_cast<std::size_t>(least - clocks_.begin()) == me_;
    });
  }

  std::int64_t work() const { return work_; }
  double speed_up() const { return static_cast<double>(work_) / static_cast<double>(elapsed_); }

 private:
  static constexpr std::int64_t kDone = std::numeric_limits<std::int64_t>::max();
  static thread_local std::size_t me_;
  int workers_;
  std::mutex mutex_;
  std::condition_variable turn_;
  std::vector<std::int64_t> clocks_;
  std::int64_t work_ = 0, elapsed_ = 0;
};
thread_local std::size_t TurnTaker::me_ = 0;

/// Runs the kernel with `workers`; each score that it works out is a unit of work.
void count(TurnTaker& executor, const Trial& s, const Row& row, Pass pass) {
  const ScoreMod counting{.apply = [&](const ScoreTile& x) { executor.spend(x.rows * x.cols); },
                          .derivative = [](const ScoreTile&, float*) {}};
  Hardware machine = hardware();
  machine.threads = executor.concurrency();
  AttentionSpec spec = s.spec;
  spec.score_mod = &counting;
  const Sizes q{s.batch, s.heads_q, s.seq_q, s.dim}, k{s.batch, s.heads_k, s.seq_k, s.dim};
  Owned q_in(s.dtype, q, s.q), k_in(s.dtype, k, s.k), v_in(s.dtype, k, s.v);
  Owned o(s.dtype, q, constant(s.rows() * s.dim, 0.0));
  Owned lse(DType::float32, {s.batch, s.heads_q, s.seq_q}, constant(s.rows(), 9.0));
  const Launch launch{.executor = &executor};
  const Choice choice{.kernel = row.kernel};
  if (pass == Pass::forward) {
    const ForwardTensors t{q_in.tensor(), k_in.tensor(), v_in.tensor(),
                           o.tensor(),    lse.tensor(),  {}};
    return tilewise::run(plan(t, spec, choice, &machine), t, spec, launch);
  }
  Owned dq(s.dtype, q), dk(s.dtype, k), dv(s.dtype, k);
  const BackwardTensors t{.q = q_in.tensor(),
                          .k = k_in.tensor(),
                          .v = v_in.tensor(),
                          .o = o.tensor(),
                          .lse = lse.tensor(),
                          .d_o = o.tensor(),
                          .dq = dq.tensor(),
                          .dk = dk.tensor(),
                          .dv = dv.tensor()};
  tilewise::run(plan(t, spec, choice, &machine), t, spec, launch);
}

void expect_workers_share(const Row& row, Pass pass, const Trial& s) {
  for (const int workers : {3, 7, 16}) {
    TurnTaker executor(workers);
    count(executor, s, row, pass);
    EXPECT_GE(executor.speed_up(), 0.6 * workers) << workers << " workers";
  }
}

double causal_share(const Row& row, Pass pass, DType dtype) {
  Trial s = trial(dtype, 1, 1, 1, 2048, 2048, 8, 8).fill(120);
  TurnTaker full(1), causal(1);
  count(full, s, row, pass);
  s.spec.causal = Causal::bottom_right;
  count(causal, s, row, pass);
  return static_cast<double>(causal.work()) / static_cast<double>(full.work());
}

/// Of the given problem, and where heads are fewer than workers.
void expect_workers_share(const Row& row, Pass pass, DType dtype) {
  expect_workers_share(row, pass, trial(dtype, 1, 32, 8, 512, 512, 8, 8).fill(119));
  expect_workers_share(row, pass, trial(dtype, 1, 1, 1, 2048, 2048, 8, 8).fill(119));
}

TEST_P(TypedForward, C119WorkersShareTheWork) {
  if (GetParam().implementation != "flash") GTEST_SKIP() << "not tiled";
  for (const DType dtype : types_) expect_workers_share(GetParam(), Pass::forward, dtype);
}

TEST_P(TypedBackward, C119WorkersShareTheWork) {
  if (GetParam().implementation != "flash") GTEST_SKIP() << "not tiled";
  for (const DType dtype : types_) expect_workers_share(GetParam(), Pass::backward, dtype);
}

TEST_P(TypedForward, C120HiddenScoresAreNotWorkedOut) {
  if (GetParam().implementation != "flash") GTEST_SKIP() << "not tiled";
  for (const DType dtype : types_) EXPECT_LE(causal_share(GetParam(), Pass::forward, dtype), 0.65);
}

TEST_P(TypedBackward, C120HiddenScoresAreNotWorkedOut) {
  if (GetParam().implementation != "flash") GTEST_SKIP() << "not tiled";
  for (const DType dtype : types_) EXPECT_LE(causal_share(GetParam(), Pass::backward, dtype), 0.65);
}

}  // namespace
}  // namespace tilewise::contract
