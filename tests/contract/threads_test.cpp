/// Many host threads, any executor: CONTRACT 14, 17.
#include <thread>

#include "contract/harness.h"

namespace tilewise::contract {
namespace {

Trial shape_of(int thread) {
  Trial s = trial(thread % 2 == 0 ? DType::float32 : DType::bfloat16, 1, 2, 1, 5 + 7 * thread,
                  9 + 5 * thread, 16, 24);
  s.fill(90 + static_cast<std::uint64_t>(thread));
  s.spec.causal = thread % 3 == 0 ? Causal::none : Causal::bottom_right;
  s.spec.deterministic = true;
  return s;
}

TEST_P(Forward, C098ManyHostThreads) {
  constexpr int kThreads = 8, kCalls = 20;
  std::vector<std::string> expected;
  for (int t = 0; t < kThreads; ++t) expected.push_back(run(shape_of(t)).bits);
  std::vector<int> wrong(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto at = static_cast<std::size_t>(t);
      for (int call = 0; call < kCalls; ++call) {
        if (run_forward(shape_of(t), GetParam().kernel).bits != expected[at]) ++wrong[at];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(kThreads, 0));
}

TEST_P(Backward, TheNumberOfThreadsChangesNothing) {
  Trial s = trial(DType::float32, 2, 4, 2, 90, 70, 32, 32).fill(98);
  s.spec.deterministic = true;
  Owned bias(DType::float32, {90, 70}, randn(90 * 70, 99));
  s.spec.bias = bias.tensor();
  const std::unique_ptr<Executor> one = make_thread_pool(1), three = make_thread_pool(3);
  EXPECT_EQ(run_backward(s, GetParam(), one.get()).bits,
            run_backward(s, GetParam(), three.get()).bits);
}

TEST_P(Forward, TheNumberOfThreadsChangesNothing) {
  const Trial s = trial(DType::float32, 1, 2, 1, 200, 500, 32, 32).fill(98);
  const std::unique_ptr<Executor> one = make_thread_pool(1), three = make_thread_pool(3);
  EXPECT_EQ(run_forward(s, GetParam().kernel, one.get()).bits,
            run_forward(s, GetParam().kernel, three.get()).bits);
}

/// CONTRACT 14: a sequence's result does not depend on the rest of the batch.
TEST_P(Forward, TheRestOfTheBatchChangesNothing) {
  Trial three = trial(DType::float32, 3, 2, 2, 40, 50, 32, 32).fill(97);
  Trial one = trial(DType::float32, 1, 2, 2, 40, 50, 32, 32);
  three.spec.deterministic = one.spec.deterministic = true;
  one.q = slice(three.q, 2 * 40 * 32, 4 * 40 * 32);
  one.k = slice(three.k, 2 * 50 * 32, 4 * 50 * 32);
  one.v = slice(three.v, 2 * 50 * 32, 4 * 50 * 32);
  expect_near(slice(run(three).o, 2 * 40 * 32, 4 * 40 * 32), run(one).o, 0.0, "O");
}

}  // namespace
}  // namespace tilewise::contract
