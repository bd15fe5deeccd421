// A plan remembers what was decided: the plan cache behind forward() and backward(), and run() with
// plans that fit, that were changed, and that were written by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "api/execute.h"
#include "api/plan_cache.h"
#include "plan/kernel_row.h"
#include "tilewise/attention.h"

namespace tilewise {
namespace {

/// A forward on the CPU with data of its own.
struct Call {
  std::int64_t heads, seq, dim;
  DType dtype = DType::float32;
  std::vector<float> q, k, v, o, lse;
  AttentionSpec spec;

  Call(std::int64_t h, std::int64_t s, std::int64_t d, DType type = DType::float32)
      : heads(h),
        seq(s),
        dim(d),
        dtype(type),
        q(elems()),
        k(q),
        v(q),
        o(q),
        lse(static_cast<std::size_t>(h * s)) {
    for (std::size_t i = 0; i < q.size(); ++i) {
      q[i] = static_cast<float>(i % 13) * 0.1F;
      k[i] = static_cast<float>(i % 7) * 0.2F;
      v[i] = static_cast<float>(i % 5) - 2.0F;
    }
  }
  std::size_t elems() const { return static_cast<std::size_t>(heads * seq * dim); }
  Tensor tensor(std::vector<float>& data) const {
    return Tensor::bhsd(data.data(), dtype, 1, heads, seq, dim);
  }
  ForwardTensors tensors() {
    return {tensor(q),
            tensor(k),
            tensor(v),
            tensor(o),
            Tensor::contiguous(lse.data(), DType::float32, {1, heads, seq}),
            {}};
  }
  Plan forward(const Choice& choice = {}) { return tilewise::forward(tensors(), spec, {}, choice); }
  std::shared_ptr<const Plan> kept(const Choice& choice = {}) {
    return kept_plan(make_problem(tensors(), spec, Purpose::run), choice);
  }
};

TEST(PlanCache, CallsOfOneShapeShareAPlan) {
  Call a(3, 21, 24), b(3, 21, 24);
  const std::shared_ptr<const Plan> first = a.kept();
  const std::size_t kept = plan_cache_size();
  EXPECT_EQ(b.kept(), first);
  EXPECT_EQ(execute(b.tensors(), b.spec, {}, {}), first);
  EXPECT_EQ(b.forward().decision, first->decision) << "a copy";
  EXPECT_EQ(plan_cache_size(), kept);
  EXPECT_FALSE(first->refusals.empty());
}

TEST(PlanCache, APlanIsThatOfPlan) {
  Call call(2, 33, 16);
  const Plan made = plan(call.tensors(), call.spec);
  EXPECT_EQ(explain(*call.kept()), explain(made));
  EXPECT_EQ(explain(call.forward()), explain(made));
}

TEST(PlanCache, WhatAPlanDependsOnHasAPlanOfItsOwn) {
  Call call(3, 22, 24);
  std::vector<std::shared_ptr<const Plan>> plans = {call.kept()};
  const auto expect_own = [&](const std::shared_ptr<const Plan>& made, const char* what) {
    EXPECT_EQ(std::count(plans.begin(), plans.end(), made), 0) << what;
    plans.push_back(made);
  };
  expect_own(Call(3, 23, 24).kept(), "length");
  expect_own(Call(3, 22, 24, DType::bfloat16).kept(), "type");
  call.spec.causal = Causal::bottom_right;
  expect_own(call.kept(), "causal");
  call.spec.causal = Causal::none;
  expect_own(call.kept({.implementation = "reference", .kernel = {}}), "implementation");
  expect_own(call.kept({.implementation = {}, .kernel = "flash_fwd_scalar"}), "kernel");
  setenv("TILEWISE_FORCE_KERNEL", "reference", 1);
  EXPECT_EQ(call.kept()->kernel, "reference_fwd");
  expect_own(call.kept(), "environment");
  unsetenv("TILEWISE_FORCE_KERNEL");
  EXPECT_EQ(call.kept(), plans.front());
}

TEST(PlanCache, HostLengthsAreCountedInEveryCall) {
  Call call(2, 24, 16);
  std::int32_t lengths[] = {24};
  call.spec.key_lengths = Tensor::contiguous(lengths, DType::int32, {1});
  const std::size_t kept = plan_cache_size();
  const double all = call.forward().flops;
  lengths[0] = 12;
  EXPECT_EQ(call.forward().flops, all / 2.0);
  EXPECT_EQ(plan_cache_size(), kept);
}

TEST(PlanCache, NothingIsKeptOfARefusal) {
  Call call(1, 25, 16);
  const std::size_t kept = plan_cache_size();
  EXPECT_THROW(call.kept({.implementation = {}, .kernel = "flash_fwd_sm90"}), Unsupported);
  EXPECT_THROW(call.kept({.implementation = "nonesuch", .kernel = {}}), InvalidArgument);
  EXPECT_EQ(plan_cache_size(), kept);
}

TEST(PlanCache, IsBounded) {
  for (std::int64_t seq = 100; seq < 5200; ++seq) {
    const Tensor t = Tensor::bhsd(nullptr, DType::float32, 1, 1, seq, 8);
    const Problem p = make_problem(ForwardTensors{t, t, t, t, {}, {}}, {}, Purpose::plan);
    ASSERT_EQ(kept_plan(p, {})->flops, 4.0 * 8 * static_cast<double>(seq * seq));
    ASSERT_LE(plan_cache_size(), 4096U);
  }
}

TEST(PlanCache, ServesManyThreads) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t id = 0; id < wrong.size(); ++id) {
    threads.emplace_back([&, id] {
      for (int turn = 0; turn < 200; ++turn) {
        const std::int64_t seq = 40 + (turn + static_cast<int>(id)) % 16;
        const Tensor t = Tensor::bhsd(nullptr, DType::float32, 1, 2, seq, 8);
        const Problem p = make_problem(ForwardTensors{t, t, t, t, {}, {}}, {}, Purpose::plan);
        if (kept_plan(p, {})->flops != 8.0 * 8 * static_cast<double>(seq * seq)) ++wrong[id];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::count(wrong.begin(), wrong.end(), 0), 4);
}

/// What run() says of a plan; empty when it ran.
std::string refusal(const Plan& plan, Call& call) {
  try {
    run(plan, call.tensors(), call.spec);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}

/// O of the call by forward().
std::vector<float> expected(Call& call) {
  call.forward();
  std::vector<float> o = call.o;
  std::fill(call.o.begin(), call.o.end(), -9.0F);
  return o;
}

TEST(RunPlan, ACopyRuns) {
  Call call(2, 40, 24);
  const std::vector<float> o = expected(call);
  const Plan made = plan(call.tensors(), call.spec);
  const Plan copy = made;
  EXPECT_EQ(copy.decision, made.decision);
  EXPECT_EQ(refusal(copy, call), "");
  EXPECT_EQ(call.o, o);
}

TEST(RunPlan, APlanWrittenByHandRunsWhenItsNumbersAreTheKernels) {
  Call call(2, 40, 24);
  const std::vector<float> o = expected(call);
  const Plan made = plan(call.tensors(), call.spec);
  Plan by_hand;
  by_hand.kernel = made.kernel;
  const std::string words = refusal(by_hand, call);
  EXPECT_NE(words.find(made.kernel + " has tiles of 0 x 0"), std::string::npos) << words;
  EXPECT_NE(words.find(std::to_string(made.workspace_bytes) + " workspace"), std::string::npos)
      << words;
  by_hand.block_m = made.block_m;
  by_hand.block_n = made.block_n;
  by_hand.splits = made.splits;
  by_hand.threads = made.threads;
  by_hand.workspace_bytes = made.workspace_bytes;
  EXPECT_EQ(refusal(by_hand, call), "");
  EXPECT_EQ(call.o, o);
  by_hand.kernel = "nonesuch";
  EXPECT_NE(refusal(by_hand, call).find("kernel is \"nonesuch\""), std::string::npos);
}

TEST(RunPlan, AChangedPlanIsRefusedWithItsNumbers) {
  Call call(2, 40, 24);
  Plan changed = plan(call.tensors(), call.spec);
  changed.block_n += 16;
  EXPECT_NE(refusal(changed, call).find("expected, for these tensors, tiles of"),
            std::string::npos);
  changed.block_n -= 16;
  EXPECT_EQ(refusal(changed, call), "");
}

TEST(RunPlan, AnotherProblemIsDecidedAnew) {
  Call small(2, 40, 24), large(8, 900, 64);
  // Kernels whose buffers grow with the problem.
  const Choice choice{.implementation = "reference", .kernel = {}};
  const Plan of_small = plan(small.tensors(), small.spec, choice);
  const Plan of_large = plan(large.tensors(), large.spec, choice);
  const std::vector<float> o = expected(small);
  EXPECT_EQ(refusal(of_large, small), "");
  for (std::size_t i = 0; i < o.size(); ++i) EXPECT_NEAR(small.o[i], o[i], 1e-5);
  const std::string words = refusal(of_small, large);
  EXPECT_NE(words.find("workspace bytes: this call needs"), std::string::npos) << words;

  Call causal(2, 40, 24);
  const Plan of_full = plan(causal.tensors(), causal.spec);
  causal.spec.causal = Causal::bottom_right;
  const std::vector<float> masked = expected(causal);
  EXPECT_EQ(refusal(of_full, causal), "");
  EXPECT_EQ(causal.o, masked);
}

}  // namespace
}  // namespace tilewise
