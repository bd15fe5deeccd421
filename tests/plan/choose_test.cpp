#include "plan/choose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "plan/accounting.h"

namespace tilewise {
namespace {

template <int kMicroseconds>
Prepared prepared() {
  Cost cost;
  cost.ms = kMicroseconds * 1e-3;
  cost.memory = {memory_part("S", MemoryItem::Role::saved, DType::float32, {3}),
                 memory_part("tmp", MemoryItem::Role::workspace, DType::float32, {1, 100})};
  return {std::move(cost), remember(kMicroseconds)};
}
template <int kMicroseconds>
Preparation run_everything(const KernelRow&, const Problem&, const Hardware&) {
  return prepared<kMicroseconds>();
}
template <int kMicroseconds>
Preparation no_long_keys(const KernelRow&, const Problem& p, const Hardware&) {
  if (p.seq_k > 100) return "more than 100 keys";
  return prepared<kMicroseconds>();
}
std::string new_to_many_keys(const KernelRow&, const Problem& p) {
  return p.seq_k > 5 ? "more than 5 keys are new" : "";
}
void no_run(const KernelRow&, const Problem&, const Context&) {}

constexpr KernelRow kRows[] = {
    {"quick", "flash", DeviceType::cpu, Pass::forward, "", no_long_keys<5>, no_run},
    {"steady", "flash", DeviceType::cpu, Pass::forward, "", run_everything<9>, no_run},
    {"twin", "flash", DeviceType::cpu, Pass::forward, "", run_everything<9>, no_run},
    {"plain", "eager", DeviceType::cpu, Pass::forward, "", run_everything<1>, no_run},
    {"device", "flash", DeviceType::cuda, Pass::forward, "", run_everything<1>, no_run},
    {"new", "flash", DeviceType::cpu, Pass::forward, "", no_long_keys<1>, no_run, nullptr,
     new_to_many_keys},
    {"back", "flash", DeviceType::cpu, Pass::backward, "", run_everything<1>, no_run},
};

Problem problem(std::int64_t keys) {
  const auto tensor = [](std::int64_t s) {
    return Tensor::bhsd(nullptr, DType::float32, 2, 3, s, 16);
  };
  const ForwardTensors t{tensor(50), tensor(keys), tensor(keys), tensor(50), {}, {}};
  return make_problem(t, {}, Purpose::plan);
}

Plan choose_from(std::int64_t keys, const Choice& choice = {}) {
  return choose(problem(keys), {}, choice, kRows);
}

TEST(Choose, TakesTheLeastPredictedTimeOfTheFlashRows) {
  EXPECT_EQ(choose_from(100).kernel, "quick");
  const Plan plan = choose_from(101);
  EXPECT_EQ(plan.kernel, "steady") << "a tie goes to the earlier row";
  ASSERT_EQ(plan.refusals.size(), 4U) << "every other row of the device and pass has its reason";
  EXPECT_EQ(plan.refusals[0].kernel, "quick");
  EXPECT_EQ(plan.refusals[0].reason, "more than 100 keys");
}

TEST(Choose, OtherImplementationsRunOnlyWhenNamed) {
  EXPECT_EQ(choose_from(10, {.implementation = "eager", .kernel = ""}).kernel, "plain");
  EXPECT_EQ(choose_from(10, {.implementation = "", .kernel = "plain"}).kernel, "plain");
  EXPECT_NE(choose_from(10).kernel, "plain");
}

TEST(Choose, ARowOnTrialRunsOnlyWhenItsKernelIsNamed) {
  EXPECT_EQ(choose_from(10, {.implementation = "", .kernel = "new"}).kernel, "new");
  const Plan plan = choose_from(10);
  EXPECT_EQ(plan.kernel, "quick");
  EXPECT_EQ(plan.refusals.back().reason, "runs only if named: more than 5 keys are new");
  EXPECT_EQ(choose_from(5).kernel, "new") << "a problem of which the row is sure";
  EXPECT_EQ(choose_from(101).refusals.back().reason, "more than 100 keys") << "named or not";
}

TEST(Choose, AForcedKernelThatCannotRunIsAnError) {
  try {
    choose_from(101, {.implementation = "", .kernel = "quick"});
    FAIL();
  } catch (const Unsupported& e) {
    EXPECT_NE(std::string(e.what()).find("quick: more than 100 keys"), std::string::npos)
        << e.what();
  }
  EXPECT_THROW(choose_from(10, {.implementation = "", .kernel = "device"}), Unsupported);
  EXPECT_THROW(choose_from(10, {.implementation = "", .kernel = "back"}), InvalidArgument);
  EXPECT_THROW(choose_from(10, {.implementation = "", .kernel = "nonesuch"}), InvalidArgument);
  EXPECT_THROW(choose_from(10, {.implementation = "nonesuch", .kernel = ""}), InvalidArgument);
}

TEST(Choose, AKernelCanBeNamedForEachPass) {
  EXPECT_EQ(choose_from(10, {.implementation = "", .kernel = "new+back"}).kernel, "new");
  const auto plan_backward = [](const std::string& kernel) {
    Problem p = problem(10);
    p.pass = Pass::backward;
    return choose(p, {}, {.implementation = "", .kernel = kernel}, kRows);
  };
  EXPECT_EQ(plan_backward("new+back").kernel, "back");
  for (const char* wrong : {"back+new", "new+quick", "new+", "+back", "new+back+back"}) {
    EXPECT_THROW(choose_from(10, {.implementation = "", .kernel = wrong}), InvalidArgument);
    EXPECT_THROW(plan_backward(wrong), InvalidArgument) << wrong;
  }
  setenv("TILEWISE_FORCE_KERNEL", "twin+back", 1);
  EXPECT_EQ(with_environment({}, Pass::forward, kRows).kernel, "twin");
  EXPECT_EQ(with_environment({}, Pass::backward, kRows).kernel, "back");
  for (const char* wrong : {"nope+back", "twin+nope", "+", "twin+back+back"}) {
    setenv("TILEWISE_FORCE_KERNEL", wrong, 1);
    try {
      with_environment({}, Pass::forward, kRows);
      ADD_FAILURE() << wrong << " is no pair of kernels";
    } catch (const InvalidArgument& error) {
      const std::string start = "TILEWISE_FORCE_KERNEL is \"" + std::string(wrong) + "\": ";
      EXPECT_EQ(std::string(error.what()).substr(0, start.size()), start);
    }
  }
  unsetenv("TILEWISE_FORCE_KERNEL");
}

TEST(Choose, IsPure) {
  const Plan a = choose_from(77);
  const Plan b = choose_from(77);
  EXPECT_EQ(explain(a), explain(b));
}

TEST(Choose, ReadsTheEnvironmentOnlyForFreeCalls) {
  setenv("TILEWISE_FORCE_KERNEL", "twin", 1);
  EXPECT_EQ(with_environment({}, Pass::forward, kRows).kernel, "twin");
  EXPECT_EQ(with_environment({}, Pass::backward, kRows).kernel, "") << "a kernel of the other pass";
  EXPECT_EQ(
      with_environment({.implementation = "flash", .kernel = ""}, Pass::forward, kRows).kernel, "");
  setenv("TILEWISE_FORCE_KERNEL", "eager", 1);
  EXPECT_EQ(with_environment({}, Pass::forward, kRows).implementation, "eager");
  setenv("TILEWISE_FORCE_KERNEL", "nonesuch", 1);
  EXPECT_THROW(with_environment({}, Pass::forward, kRows), InvalidArgument);
  unsetenv("TILEWISE_FORCE_KERNEL");
}

TEST(Choose, AccountsForMemory) {
  const Plan plan = choose_from(100);
  const std::int64_t q = 2 * 3 * 50 * 16 * 4;
  const std::int64_t k = 2 * 3 * 100 * 16 * 4;
  EXPECT_EQ(plan.saved_bytes, 256) << "parts are aligned";
  EXPECT_EQ(plan.workspace_bytes, 512);
  EXPECT_FALSE(plan.keeps_saved);
  EXPECT_EQ(plan.live_bytes(), 2 * q + 2 * k) << "a forward alone keeps nothing";
  EXPECT_EQ(plan.peak_bytes(), plan.live_bytes() + 512);
  Problem keeping = problem(100);
  keeping.saved.bytes = plan.saved_bytes;
  const Plan kept = choose(keeping, {}, {}, kRows);
  EXPECT_EQ(kept.live_bytes(), 2 * q + 2 * k + 256);
  EXPECT_EQ(kept.peak_bytes(), kept.live_bytes() + 512);
  EXPECT_DOUBLE_EQ(plan.flops, 4.0 * 2 * 3 * 50 * 100 * 16);
}

TEST(Accounting, CountsVisiblePairs) {
  Problem p = problem(50);
  EXPECT_DOUBLE_EQ(visible_pairs(p), 6.0 * 50 * 50);
  p.causal = Causal::bottom_right;
  p.right = 0;
  EXPECT_DOUBLE_EQ(visible_pairs(p), 6.0 * 50 * 51 / 2);
  p.left = 9;
  EXPECT_DOUBLE_EQ(visible_pairs(p), 6.0 * (10 * 40 + 55));
  p.pass = Pass::backward;
  EXPECT_DOUBLE_EQ(attention_flops(p), visible_pairs(p) * 10 * 16);
}

TEST(Accounting, PackedLengthsOnADeviceAreTheLongestAndTheRest) {
  Problem p = problem(50);
  p.device = {DeviceType::cuda, 0};
  p.packed = true;
  p.batch = 4;
  p.total_q = p.total_k = 110;  // of which 50 are one sequence's
  EXPECT_DOUBLE_EQ(visible_pairs(p), 3.0 * (50 * 50 + 3 * 20 * 20));
  p.seq_q = p.seq_k = 110;  // as long as all of them: the longest was not told
  EXPECT_DOUBLE_EQ(visible_pairs(p), 3.0 * 4 * 27 * 27);
  p.batch = 1;
  EXPECT_DOUBLE_EQ(visible_pairs(p), 3.0 * 110 * 110);
}

// The closed form counts what walking the rows counts, for every window, diagonal and length.
TEST(Accounting, VisiblePairsAreThoseOfTheRows) {
  const std::int64_t bounds[] = {-7, -1, 0, 3, 12, 60, Problem::kUnbounded};
  for (const std::int64_t keys : {0, 1, 20, 50, 77}) {
    for (const Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right}) {
      for (const std::int64_t left : bounds) {
        for (const std::int64_t right : bounds) {
          Problem p = problem(keys);
          p.causal = causal;
          p.left = left;
          p.right = causal == Causal::bottom_right ? std::min<std::int64_t>(right, 0) : right;
          double pairs = 0.0;
          for (std::int64_t i = 0; i < p.seq_q; ++i) {
            const KeyRange range = p.visible_keys({0, p.seq_q, 0, p.seq_k}, i);
            pairs += static_cast<double>(range.end - range.begin);
          }
          EXPECT_DOUBLE_EQ(visible_pairs(p), 6.0 * pairs)
              << keys << " keys, window " << left << ", " << right;
        }
      }
    }
  }
}

TEST(Explain, KernelsThatShareAReasonShareALine) {
  const std::vector<Refusal> refusals = {{"a", "x"}, {"b", "y"}, {"c", "x"}};
  EXPECT_EQ(refusal_lines(refusals), (std::vector<std::string>{"a, c: x", "b: y"}));
  EXPECT_EQ(refusal_lines(refusals, "b"), (std::vector<std::string>{"b: y"}));
}

TEST(Explain, SaysWhatAndWhy) {
  const std::string words = explain(choose_from(101));
  for (const char* part :
       {"forward on cpu: steady (flash)", "lowest predicted time", "quick, new: more than 100 keys",
        "(2, 3, 101, 16)", "workspace", "GFLOP"}) {
    EXPECT_NE(words.find(part), std::string::npos) << part << "\n" << words;
  }
}

}  // namespace
}  // namespace tilewise
