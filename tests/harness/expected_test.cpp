#include "harness/expected.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "harness/materialize.h"
#include "harness/sample.h"
#include "reference/reference.h"

namespace tilewise {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

CheckResult compared(const std::vector<double>& truth, std::vector<float> actual,
                     bool finite_only = false) {
  CheckResult result;
  const auto size = static_cast<std::int64_t>(actual.size());
  const Tensor tensor = Tensor::contiguous(actual.data(), DType::float32, {1, size});
  compare({"O", truth, 0.0, 1e-3}, tensor, finite_only, result);
  return result;
}

TEST(Compare, AcceptsWhatIsWithinTheBound) {
  const CheckResult result = compared({1.0, -2.0}, {1.0009F, -2.0F});
  EXPECT_EQ(result.status, CheckStatus::passed) << result.reason;
  EXPECT_NEAR(result.deviations.at(0).error, 9e-4, 1e-6);
}

TEST(Compare, SaysWhichElementIsOff) {
  const CheckResult result = compared({1.0, -2.0, 3.0}, {1.0F, -2.1F, 3.01F});
  EXPECT_EQ(result.status, CheckStatus::failed);
  EXPECT_NE(result.reason.find("O[0,1] is -2.0999"), std::string::npos) << result.reason;
  EXPECT_NE(result.reason.find("2 of 3 elements"), std::string::npos) << result.reason;
}

TEST(Compare, NanAndInfinityMustAgree) {
  EXPECT_EQ(compared({NAN, -INFINITY}, {kNan, -kInfinity}).status, CheckStatus::passed);
  EXPECT_EQ(compared({NAN}, {0.0F}).status, CheckStatus::failed);
  EXPECT_EQ(compared({0.0}, {kNan}).status, CheckStatus::failed);
  EXPECT_EQ(compared({-INFINITY}, {kInfinity}).status, CheckStatus::failed);
  EXPECT_EQ(compared({-INFINITY}, {-3e38F}).status, CheckStatus::failed);
  EXPECT_EQ(compared({1.0}, {kInfinity}).status, CheckStatus::failed);
  EXPECT_EQ(compared({1e39}, {kInfinity}).status,
            CheckStatus::passed);  // what float32 holds for it
}

TEST(Compare, TheErrorOfAnInfinityThatIsNoneIsInfinite) {
  const auto error = [](const std::vector<double>& truth, std::vector<float> actual) {
    return compared(truth, std::move(actual)).deviations.at(0).error;
  };
  EXPECT_EQ(error({1.0, 2.0}, {kInfinity, kInfinity}), INFINITY);
  EXPECT_EQ(error({1.0, 2.0}, {1.5F, kNan}), INFINITY);
  EXPECT_EQ(error({-INFINITY, 2.0}, {1.0F, 2.0F}), INFINITY);
  EXPECT_EQ(error({NAN, -INFINITY, 1e39, 2.0}, {kNan, -kInfinity, kInfinity, 2.5F}), 0.5);
}

TEST(Compare, FiniteOnlyLetsValuesBeOffButNotNan) {
  EXPECT_EQ(compared({1.0}, {77.0F}, true).status, CheckStatus::passed);
  EXPECT_EQ(compared({1.0}, {kNan}, true).status, CheckStatus::failed);
}

TEST(Expected, BoundIsTwiceTheYardstickAndAFloor) {
  MaterializedCase c = materialize(parse_case("b1 h1 s32 d16 bf16"), 1);
  const Problem p = make_problem(c.forward(), c.spec(), Purpose::run);
  const std::vector<Expected> results = expected_results(p, default_executor());
  EXPECT_EQ(results[0].name, "O");
  EXPECT_GT(results[0].yardstick, 1e-4);  // bfloat16 has eight bits
  EXPECT_LT(results[0].yardstick, 5e-2);
  EXPECT_DOUBLE_EQ(results[0].bound, 2.0 * results[0].yardstick + 1e-5);
  EXPECT_EQ(results[1].name, "LSE");
  EXPECT_LE(results[1].bound, 1e-5 * std::max(1.0, largest_score(p) + std::log(32.0)));
}

TEST(Expected, LargestScore) {
  MaterializedCase c = materialize(parse_case("b1 h1 q2 k3 d4 q=2 k=iota scale=-0.5"), 1);
  // q.k = 2 * 2 * 4 for the last key, times 0.5.
  EXPECT_DOUBLE_EQ(largest_score(make_problem(c.forward(), c.spec(), Purpose::run)), 8.0);
}

TEST(ReferenceCache, KeepsAndForgets) {
  ReferenceCache cache(100 * sizeof(double));
  int made = 0;
  const auto make = [&] {
    ++made;
    return std::vector<Expected>{{"O", std::vector<double>(60), 0.0, 0.0}};
  };
  cache.get("a", make);
  cache.get("a", make);
  EXPECT_EQ(made, 1);
  cache.get("b", make);  // no room for both: the older goes
  cache.get("b", make);
  EXPECT_EQ(made, 2);
  cache.get("a", make);
  EXPECT_EQ(made, 3);
}

/// A part of a problem gives the same rows as the whole.
void expect_same_rows(const std::string& line) {
  MaterializedCase c = materialize(parse_case(line), 1);
  const Problem whole = make_problem(c.backward(), c.spec(), Purpose::run);
  ASSERT_TRUE(can_sample(whole)) << line;
  const reference::Forward forward = reference::forward_f64(whole);
  const reference::Backward backward = reference::backward_f64(whole);
  const auto rows_of = [&](const std::vector<double>& values, std::int64_t heads, std::int64_t dim,
                           std::int64_t rows, const Sample& s, std::int64_t first_head,
                           std::int64_t count) {
    std::vector<double> part;
    for (std::int64_t h = first_head; h < first_head + count; ++h) {
      const std::int64_t begin = ((s.b * heads + h) * rows + s.row_begin) * dim;
      part.insert(part.end(), values.begin() + begin,
                  values.begin() + begin + (s.row_end - s.row_begin) * dim);
    }
    return part;
  };
  for (double work : {1.0, 1e4, 1e12}) {
    for (const Sample& s : choose_samples(whole, work, 3)) {
      const Problem part = sample_problem(whole, s);
      const std::int64_t heads = s.head_end - s.head_begin;
      EXPECT_EQ(reference::forward_f64(part).o, rows_of(forward.o, whole.heads_q, whole.head_dim_v,
                                                        whole.seq_q, s, s.head_begin, heads))
          << line << " b" << s.b << " h" << s.head_begin << " i" << s.row_begin;
      EXPECT_EQ(reference::forward_f64(part).lse,
                rows_of(forward.lse, whole.heads_q, 1, whole.seq_q, s, s.head_begin, heads));
      const reference::Backward gradients = reference::backward_f64(part);
      EXPECT_EQ(gradients.dq, rows_of(backward.dq, whole.heads_q, whole.head_dim, whole.seq_q, s,
                                      s.head_begin, heads));
      if (!whole_keys(whole, s)) continue;
      const std::int64_t begin = (s.b * whole.heads_k + s.head_k) * whole.seq_k * whole.head_dim;
      const auto first = backward.dk.begin() + begin;
      EXPECT_EQ(gradients.dk, std::vector<double>(first, first + part.seq_k * whole.head_dim))
          << line;
    }
  }
}

TEST(Sample, PartsOfAProblemAreTheProblem) {
  expect_same_rows("b2 h4/2 q20 k30 d8");
  expect_same_rows("b2 h4/2 q20 k30 d8 causal layout=bshd");
  expect_same_rows("b2 h2 q30 k20 d8 causal");
  expect_same_rows("b2 h2 q20 k30 d8 causal_top_left");
  expect_same_rows("b2 h2 q30 k20 d8 dv4 window=5,3 causal_top_left");
  expect_same_rows("b1 h2 q30 k20 d8 window=-2,9");
  expect_same_rows("b3 h2 q20 k30 d8 lengths=30,0,11 causal sink dlse");
  expect_same_rows("b2 h2 q20 k30 d8 mask=b,1,q,k:some0.4 bias=1,h,q,k softcap=3");
}

TEST(Sample, PositionsForbidIt) {
  for (const char* line :
       {"s8 alibi", "s8 dropout=0.1", "s8 mod=wave", "s8 blocks=4,4:1,1:1", "packed=4,4"}) {
    MaterializedCase c = materialize(parse_case(line), 1);
    EXPECT_FALSE(can_sample(make_problem(c.forward(), c.spec(), Purpose::run))) << line;
  }
}

}  // namespace
}  // namespace tilewise
