#include "expression/affine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "expression/interpret.h"
#include "expression/lower.h"

namespace tilewise {
namespace {

using expression::Affine;
using expression::Interpreter;
using expression::Point;

std::vector<float> slopes{0.5F, 0.25F, -0.125F};
std::vector<float> table(64, 0.5F);

std::vector<Captured> captures() {
  return {Captured("slopes", Tensor::contiguous(slopes.data(), DType::float32, {3})),
          Captured("table", Tensor::contiguous(table.data(), DType::float32, {64}))};
}

/// The affine form at a point, its score included.
double value(const Affine& affine, Interpreter& nodes, const Point& at) {
  nodes.turn_to(at);
  const auto real = [&](std::int32_t node) { return node < 0 ? 0.0 : nodes.real(node); };
  const double shift =
      static_cast<double>(affine.shift.constant + affine.shift.query_length * at.query_length +
                          affine.shift.key_length * at.key_length);
  const auto i = static_cast<double>(at.i), j = static_cast<double>(at.j);
  return at.score - real(affine.distance) * std::fabs(i - j + shift) +
         real(affine.ahead) * (j - i) + real(affine.row) * i + real(affine.column) * j +
         real(affine.constant);
}

TEST(Affine, GivesWhatTheFunctionGives) {
  const char* const texts[] = {
      "score - slopes[h]*abs(i - j)",
      "score - abs(float(i - j))*exp2(-0.5*float(h + 1))",
      "score + slopes[h]*(j - i)",
      "score - 0.5*abs(j - i - key_length + query_length - 3)",
      "score + (j - i)/(1.0 + h) - 0.25",
      "0.1*i + (score - 0.2*j) + slopes[b]",
      "slopes[2]*(i + 7) + score - 0.5*(abs(i - j) + 0.1*j - 3)/slopes[h]",
      "score - (slopes[h]*abs(i - j) - 0.25*abs(i - j))",
      "score + 0.01*(key_length - 1 - j)",
      "score - -(0.5*(i - j + 4))",
  };
  for (const char* const text : texts) {
    const Expression given = Expression::parse(text, captures());
    const expression::Lowered& lowered = expression::lower(given);
    const auto affine = lowered.affine();
    ASSERT_NE(affine, nullptr) << text;
    const expression::Function function = expression::function_of(given);
    Interpreter whole(*lowered.program(), function.captures);
    Interpreter nodes(affine->program, function.captures);
    for (const int h : {0, 1, 2}) {
      for (const int i : {0, 3, 17}) {
        for (const int j : {0, 5, 17, 29}) {
          const Point at = {h % 2, h, i, j, 20, 30, 0.75};
          whole.turn_to(at);
          EXPECT_NEAR(value(*affine, nodes, at), whole.real(lowered.program()->result), 1e-9)
              << text << " at " << h << ' ' << i << ' ' << j;
        }
      }
    }
  }
}

TEST(Affine, LeavesOthersAlone) {
  for (const char* const text :
       {"score", "score*2 - 0.5*abs(i - j)", "score + table[clamp(i - j, 0, 63)]",
        "score - 0.5*abs(i - j)*j", "score - abs(i - j) - abs(i - j + 1)", "score - 0.5*abs(i + j)",
        "score + table[j]", "0.5*abs(i - j)", "score - 0.5*max(i - j, 0)", "score + score",
        "score - sqrt(float(abs(i - j)))", "score*float(j) + 0.5*i"}) {
    const Expression given = Expression::parse(text, captures());
    EXPECT_EQ(expression::lower(given).affine(), nullptr) << text;
  }
}

}  // namespace
}  // namespace tilewise
