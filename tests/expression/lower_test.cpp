#include "expression/lower.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tilewise/expression.h"

namespace tilewise::expression {
namespace {

std::vector<Captured> captures() {
  static std::vector<float> memory(64);
  return {Captured("slopes", Tensor::contiguous(memory.data(), DType::float32, {4})),
          Captured("table", Tensor::contiguous(memory.data(), DType::float32, {4, 16})),
          Captured("doc", Tensor::contiguous(memory.data(), DType::int32, {16})),
          Captured("row", Tensor::contiguous(memory.data(), DType::boolean, {16}))};
}

const Program& program(std::string_view text) {
  static std::vector<Expression> kept;
  kept.push_back(Expression::parse(text, captures()));
  return *lower(kept.back()).program();
}

std::uint8_t depends(std::string_view text) {
  const Program& p = program(text);
  return p.nodes[static_cast<std::size_t>(p.result)].depends;
}

TEST(Lower, MakesEqualNodesOnce) {
  EXPECT_EQ(program("(i - j)*(i - j)").nodes.size(), 4U);
  EXPECT_EQ(program("max(i + j, j + i)").nodes.size(), 3U) << "sums commute, and max(x, x) is x";
  EXPECT_EQ(program("tanh(score) + tanh(score)*2").nodes.size(), 5U);
}

TEST(Lower, FoldsConstants) {
  for (const char* text :
       {"2*3 + 4", "where(1 < 2, 10, i)", "10 + 0*i", "(i - i) + 10", "int(exp(0.0)*10)"}) {
    const Program& p = program(text);
    ASSERT_EQ(p.nodes.size(), 1U) << text;
    EXPECT_EQ(p.nodes[0].integer, 10) << text;
  }
  EXPECT_EQ(program("score*1.0 + 0").nodes.size(), 1U);
  EXPECT_EQ(program("i < j | true").nodes.size(), 1U);
  EXPECT_EQ(program("i < j & true").nodes.size(), 3U);
  EXPECT_EQ(program("score/8").text, program("score*0.125").text);
  EXPECT_NE(program("score/3").text, program("score*0.33333333333333331").text);
}

TEST(Lower, TurnsNotAroundForIntegersAlone) {
  EXPECT_EQ(program("~(i < j)").text, program("i >= j").text);
  EXPECT_NE(program("~(score < 1)").text, program("score >= 1").text) << "NaN is neither";
}

TEST(Lower, KeepsTheSignOfZeroAndNaNApart) {
  EXPECT_NE(program("score*0.0").text, program("score*(-0.0)").text);
  EXPECT_EQ(program("where(i < j, nan, nan)").nodes.size(), 1U);
}

TEST(Lower, ClassesWhatAValueDependsOn) {
  EXPECT_EQ(depends("3"), kUniform);
  EXPECT_EQ(depends("slopes[h]"), kHead);
  EXPECT_EQ(depends("b + query_length"), kBatch);
  EXPECT_EQ(depends("doc[i]"), kQuery);
  EXPECT_EQ(depends("doc[j]*2"), kKey);
  EXPECT_EQ(depends("i - j"), kDiagonal);
  EXPECT_EQ(depends("abs(j - i)*slopes[h]"), kDiagonal | kHead);
  EXPECT_EQ(depends("i + (key_length - query_length) - j"), kDiagonal | kBatch);
  EXPECT_EQ(depends("(2*i + 3) - 2*(j - 1)"), kDiagonal);
  EXPECT_EQ(depends("table[h, clamp(i - j, 0, 15)]"), kDiagonal | kHead);
  EXPECT_EQ(depends("float(i) - float(j)"), kDiagonal);
  EXPECT_EQ(depends("i + j"), kQuery | kKey);
  EXPECT_EQ(depends("(i - j) + doc[i]"), kQuery | kKey) << "never a diagonal beside a query";
  EXPECT_EQ(depends("2*i - j"), kQuery | kKey);
  EXPECT_EQ(depends("i - (j + i)"), kQuery | kKey | 0) << "not simplified";
  EXPECT_EQ(depends("score + i"), kScore | kQuery);
  EXPECT_EQ(depends("any(4, doc[lane] == doc[i])"), kQuery);
  EXPECT_EQ(depends("sum(4, slopes[lane])"), kUniform);
}

TEST(Lower, ListsCapturesInTheOrderOfFirstUse) {
  const Expression e =
      Expression::parse("table[0, i] + slopes[h]*float(doc[j]) + table[1, j]", captures());
  std::vector<std::string> names;
  for (const Captured& c : e.captures()) names.push_back(c.name());
  EXPECT_EQ(names, (std::vector<std::string>{"table", "slopes", "doc"}));
  EXPECT_EQ(lower(e).program()->captures.size(), 3U);
  EXPECT_EQ(lower(e).program()->captures[0].rank, 2);
  const Expression folded = Expression::parse("where(true, score, slopes[h])", captures());
  EXPECT_EQ(folded.captures().size(), 1U) << "a gradient's place does not move with folding";
}

TEST(Lower, TellsProgramsApartByText) {
  EXPECT_EQ(program("score - 0.1*abs(i-j)").text, program("score - abs(i - j)*0.1").text);
  EXPECT_NE(program("score - 0.1*abs(i-j)").text, program("score - 0.2*abs(i-j)").text);
  EXPECT_NE(program("slopes[h]").text, program("float(doc[h])").text);
  EXPECT_NE(program("any(4, row[lane])").text, program("any(5, row[lane])").text);
  EXPECT_NE(program("any(4, row[lane])").text, program("all(4, row[lane])").text);
}

TEST(Lower, RefusesTooManyNodes) {
  std::vector<Expression> row;
  for (int n = 0; n < 8192; ++n) row.push_back(score() * (1.5 + n));
  while (row.size() > 1) {
    for (std::size_t n = 0; n < row.size() / 2; ++n) row[n] = row[2 * n] + row[2 * n + 1];
    row.resize(row.size() / 2);
  }
  EXPECT_THROW((void)lower(row[0]), InvalidArgument);
}

TEST(Lower, RefusesTooDeepOnes) {
  Expression x = score();
  EXPECT_THROW(
      {
        for (int n = 0; n < 100000; ++n) x = tanh(x);
      },
      InvalidArgument);
}

}  // namespace
}  // namespace tilewise::expression
