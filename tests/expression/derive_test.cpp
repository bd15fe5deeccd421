#include "expression/derive.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "expression/interpret.h"
#include "expression/lower.h"
#include "harness/random_expression.h"
#include "tilewise/expression.h"

namespace tilewise::expression {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double value(const Function& f, const Point& at) {
  Interpreter interpreter(*f.program, f.captures);
  interpreter.turn_to(at);
  return interpreter.real(f.program->result);
}

/// The derivative by the score, and by every element of every captured tensor.
struct Slopes {
  double score = 0.0;
  std::vector<std::vector<double>> captures;
};

Slopes derivative(const Function& f, const Point& at) {
  const Gradient gradient = derive(*f.program);
  Interpreter interpreter(gradient.program, f.captures);
  interpreter.turn_to(at);
  Slopes slopes{.score = interpreter.real(gradient.of_score), .captures = {}};
  for (const Tensor& t : f.captures) {
    slopes.captures.emplace_back(static_cast<std::size_t>(t.numel()), 0.0);
  }
  for (const CaptureTerm& term : gradient.terms) {
    const Tensor& t = f.captures[static_cast<std::size_t>(term.capture)];
    for (std::int64_t lane = 0; lane < term.lanes; ++lane) {
      interpreter.turn_to_lane(lane);
      std::int64_t element = 0;
      for (std::size_t axis = 0; axis < static_cast<std::size_t>(t.rank); ++axis) {
        element =
            element * t.sizes[axis] + in_axis(interpreter.integer(term.index[axis]), t.sizes[axis]);
      }
      slopes.captures[static_cast<std::size_t>(term.capture)][static_cast<std::size_t>(element)] +=
          interpreter.real(term.value);
    }
  }
  EXPECT_EQ(interpreter.real(gradient.program.result), value(f, at)) << "the value stays";
  return slopes;
}

double slope(std::string_view text, double x) {
  const Function f = function_of(Expression::parse(text));
  return derivative(f, {.i = 3, .j = 1, .query_length = 8, .key_length = 8, .score = x}).score;
}

TEST(Derive, KnowsEachFunction) {
  const double x = 0.625;
  for (const char* text : {"score",
                           "3*score - 2",
                           "score*score*score",
                           "2/score",
                           "score/3",
                           "abs(score)",
                           "abs(-score)",
                           "exp(score)",
                           "exp2(score)",
                           "log(score)",
                           "sqrt(score)",
                           "rsqrt(score)",
                           "tanh(score)",
                           "sigmoid(score)",
                           "sin(score)",
                           "cos(score)",
                           "atan(score)",
                           "erf(score)",
                           "relu(score)",
                           "relu(-score)",
                           "silu(score)",
                           "gelu(score)",
                           "pow(score, 2.5)",
                           "pow(2.0, score)",
                           "pow(score, score)",
                           "score % 0.5",
                           "0.9 % score",
                           "min(score, 2*score*score)",
                           "max(score, 2*score*score)",
                           "clamp(score, 0, 1)",
                           "clamp(score, 1, 2)",
                           "where(i > j, score*score, score)",
                           "where(i < j, score*score, score)",
                           "sum(4, score*float(lane))",
                           "20*tanh(score/20)",
                           "score + 3.0",
                           "float(i)*score",
                           "floor(score) + ceil(score) + round(score) + sign(score)",
                           "score // 0.25"}) {
    const Function f = function_of(Expression::parse(text));
    Point at{.i = 3, .j = 1, .query_length = 8, .key_length = 8, .score = x};
    const double made = derivative(f, at).score;
    constexpr double kStep = 1e-6;
    at.score = x + kStep;
    const double above = value(f, at);
    at.score = x - kStep;
    const double below = value(f, at);
    EXPECT_NEAR(made, (above - below) / (2 * kStep), 1e-7) << text;
  }
}

TEST(Derive, FollowsTorchAtKinks) {
  EXPECT_EQ(slope("abs(score)", 0.0), 0.0);
  EXPECT_EQ(slope("relu(score)", 0.0), 0.0);
  EXPECT_EQ(slope("clamp(score, 0, 1)", 0.0), 1.0);
  EXPECT_EQ(slope("clamp(score, 0, 1)", 1.0), 1.0);
  EXPECT_EQ(slope("clamp(score, 0, 1)", -0.5), 0.0);
  EXPECT_EQ(slope("max(score, 2*score)", 0.0), 1.5) << "half of each at equality";
  EXPECT_EQ(slope("min(score, 3*score)", 0.0), 2.0);
  EXPECT_EQ(slope("floor(score)", 0.5), 0.0);
  EXPECT_EQ(slope("round(score)", 0.5), 0.0);
  EXPECT_EQ(slope("sign(score)", 0.5), 0.0);
  EXPECT_EQ(slope("pow(score, 0.0)", 0.0), 0.0);
}

TEST(Derive, TakesNothingFromWhatWhereLeavesOut) {
  EXPECT_EQ(slope("where(score > 0, log(score), score)", 0.0), 1.0) << "0 x inf";
  EXPECT_EQ(slope("where(score > 0, sqrt(score), 2*score)", 0.0), 2.0);
  EXPECT_EQ(slope("where(score > 0, 1/score, 5*score)", 0.0), 5.0);
  EXPECT_EQ(slope("where(i < j, -1/(score*score), score)", 0.0), 1.0);
  EXPECT_EQ(slope("where(i < j, exp(1/score), score)", 0.0), 1.0);
  EXPECT_EQ(slope("log(score)", 0.0), kInfinity) << "what is taken keeps its own";
}

TEST(Derive, OfNoScoreIsZero) {
  EXPECT_EQ(slope("0.5*float(i - j)", 1.0), 0.0);
  EXPECT_EQ(slope("float(int(score))", 1.5), 0.0);
}

TEST(Derive, SharesNodesWithTheFunction) {
  const Expression e = Expression::parse("30*tanh(score/30)");
  const Gradient gradient = derive(*lower(e).program());
  int tanhs = 0;
  for (const Node& node : gradient.program.nodes) tanhs += node.op == Op::tanh ? 1 : 0;
  EXPECT_EQ(tanhs, 1);
  EXPECT_NE(gradient.program.text, lower(e).program()->text);
}

TEST(Derive, ReadsOneTensorAtSeveralPlaces) {
  std::vector<double> row{1, 2, 3, 4};
  const Captured c("row", Tensor::contiguous(row.data(), DType::float64, {4}));
  const Expression e = score() * c(0) + c(1) * c(-1) + sum(4, c(lane()) * c(lane()));
  const Slopes s = derivative(function_of(e), {.score = 0.5});
  EXPECT_EQ(s.score, 1.0);
  EXPECT_EQ(s.captures[0], (std::vector<double>{0.5 + 2, 4 + 4, 6, 2 + 8}));
}

TEST(Derive, SumsOverLanesShareNodesButNotAdjoints) {
  std::vector<double> row{1, 2, 3, 4};
  const Captured c("row", Tensor::contiguous(row.data(), DType::float64, {4}));
  const Expression lanes = c(lane());
  const Expression e = sum(2, lanes * score()) + 10 * sum(4, lanes);
  const Slopes s = derivative(function_of(e), {.score = 0.5});
  EXPECT_EQ(s.score, 3.0);
  EXPECT_EQ(s.captures[0], (std::vector<double>{10.5, 10.5, 10, 10}));
}

/// A moved copy of the captured tensors' memory is seen through the same Function.
double difference(const Function& f, const Point& at, double* moved) {
  constexpr double kStep = 1e-5;
  const double kept = *moved;
  *moved = kept + kStep;
  const double above = value(f, at);
  *moved = kept - kStep;
  const double below = value(f, at);
  *moved = kept;
  return (above - below) / (2 * kStep);
}

TEST(Derive, EqualsCentralDifferencesOfRandomFormulas) {
  const Draws draws(300);
  const int count = draws.count;
  int judged = 0;
  for (int n = 0; n < count; ++n) {
    const std::uint64_t seed = draws.seed + static_cast<std::uint64_t>(n);
    RandomCaptures tensors(seed);
    RandomExpression random(seed + 1, tensors);
    const Expression e = to_real(random.real(1 + n % 8, true));
    const Function f = function_of(e);
    Point at{.b = n % 3, .h = n % 4, .i = n % 7, .j = n % 5, .query_length = 7, .key_length = 5};
    at.score = 0.37 + 0.001 * (n % 100);
    const Slopes made = derivative(f, at);
    // A kink within the step spoils a difference: then two steps disagree.
    const auto judge = [&](double slope, double* moved, const std::string& what) {
      const double coarse = difference(f, at, moved);
      if (std::fabs(coarse - slope) < 1e-5 * (1 + std::fabs(slope))) {
        ++judged;
        return;
      }
      const double centre = value(f, at);
      const double kept = *moved;
      *moved = kept + 1e-5;
      const double right = (value(f, at) - centre) / 1e-5;
      *moved = kept - 1e-5;
      const double left = (centre - value(f, at)) / 1e-5;
      *moved = kept;
      EXPECT_GT(std::fabs(right - left), 1e-3 * std::fabs(slope - coarse))
          << what << " of " << e.text() << ": " << slope << " is not " << coarse;
    };
    judge(made.score, &at.score, "by score");
    for (std::size_t c = 0; c < f.captures.size(); ++c) {
      if (f.captures[c].dtype != DType::float64) continue;
      for (std::size_t x = 0; x < made.captures[c].size(); x += 1 + x % 3) {
        judge(made.captures[c][x], static_cast<double*>(f.captures[c].data) + x,
              "by element " + std::to_string(x) + " of capture " + std::to_string(c));
      }
    }
  }
  EXPECT_GT(judged, count);
}

}  // namespace
}  // namespace tilewise::expression
