#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "expect_parts.h"
#include "expression/interpret.h"
#include "expression/lower.h"
#include "tilewise/expression.h"

namespace tilewise {
namespace {

using expression::Function;
using expression::Interpreter;
using expression::Point;

/// Values of a table that formulas below read.
struct Tables {
  std::vector<float> slopes{0.5F, 0.25F, 0.125F};
  std::vector<std::int32_t> documents{0, 0, 1, 1, 2};
  std::vector<float> table{1, 2, 3, 4, 5, 6};
  float one = 7.0F;
  std::vector<Captured> captures{
      Captured("slopes", Tensor::contiguous(slopes.data(), DType::float32, {3})),
      Captured("doc", Tensor::contiguous(documents.data(), DType::int32, {5})),
      Captured("table", Tensor::contiguous(table.data(), DType::float32, {2, 3})),
      Captured("one", Tensor::contiguous(&one, DType::float32, {1}))};
};

/// The value of a formula as a double, whatever its type.
double value(
    std::string_view text,
    const Point& point = {
        .b = 1, .h = 2, .i = 4, .j = 1, .query_length = 5, .key_length = 6, .score = 0.75}) {
  static Tables tables;
  const Function function = expression::function_of(Expression::parse(text, tables.captures));
  Interpreter interpreter(*function.program, function.captures);
  interpreter.turn_to(point);
  const std::int32_t result = function.program->result;
  const bool real =
      function.program->nodes[static_cast<std::size_t>(result)].type == expression::Type::real;
  return real ? interpreter.real(result) : static_cast<double>(interpreter.integer(result));
}

std::string message(std::string_view text) {
  static Tables tables;
  try {
    const Expression read = Expression::parse(text, tables.captures);
    (void)expression::lower(read);
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Text, ReadsLeavesAndNumbers) {
  EXPECT_EQ(value("score"), 0.75);
  EXPECT_EQ(value("b"), 1);
  EXPECT_EQ(value("h"), 2);
  EXPECT_EQ(value("i*10 + j"), 41);
  EXPECT_EQ(value("query_length*10 + key_length"), 56);
  EXPECT_EQ(value("1.5e2"), 150.0);
  EXPECT_EQ(value(".5"), 0.5);
  EXPECT_EQ(value("true"), 1);
  EXPECT_EQ(value("where(false, 1.0, -inf)"), -HUGE_VAL);
  EXPECT_TRUE(std::isnan(value("nan")));
}

TEST(Text, BindsAsC) {
  EXPECT_EQ(value("1 + 2*3"), 7);
  EXPECT_EQ(value("10 - 4 - 3"), 3);
  EXPECT_EQ(value("-2*3"), -6);
  EXPECT_EQ(value("1 << 2 + 1"), 8);
  EXPECT_EQ(value("i - j < 3 | j < 2"), 1);
  EXPECT_EQ(value("6 & 3 == 3"), 0) << "& binds looser than ==, as in C; true promotes to 1";
  EXPECT_EQ(value("4 | 6 ^ 3 & 1"), 7);
  EXPECT_EQ(value("i < 2 && j < 2 || true"), 1);
  EXPECT_EQ(value("i < 2 and j < 2 or true"), 1);
  EXPECT_EQ(value("not i < 2"), 1);
  EXPECT_EQ(value("!(i < 2) & ~(j < 0)"), 1);
  EXPECT_EQ(value("~5"), -6);
}

TEST(Text, DividesAsPython) {
  EXPECT_EQ(value("-7 // 2"), -4);
  EXPECT_EQ(value("-7 % 3"), 2);
  EXPECT_EQ(value("7 % -3"), -2);
  EXPECT_EQ(value("7 / 2"), 3.5);
  EXPECT_EQ(value("-7.5 // 2"), -4.0);
  EXPECT_EQ(value("-7.5 % 2"), 0.5);
  EXPECT_EQ(value("(j - i) // 2"), -2) << "no constant: the interpreter's own";
  EXPECT_EQ(value("(j - i) % 2"), 1);
}

TEST(Text, CallsFunctions) {
  EXPECT_EQ(value("abs(j - i)"), 3);
  EXPECT_EQ(value("min(i, j) + max(i, 2.5)"), 5.0);
  EXPECT_EQ(value("clamp(i, 0, 3)"), 3);
  EXPECT_EQ(value("pow(i, 3)"), 64);
  EXPECT_EQ(value("pow(score, 0.5)"), std::sqrt(0.75));
  EXPECT_EQ(value("where(i >= j, score, -1)"), 0.75);
  EXPECT_EQ(value("int(2.9) + int(-2.9)"), 0);
  EXPECT_EQ(value("float(i) / 8"), 0.5);
  EXPECT_EQ(value("bool(i) + bool(0)"), 1);
  EXPECT_EQ(value("round(2.5) + round(3.5)"), 6.0) << "half to even";
  EXPECT_EQ(value("floor(-1.5) + ceil(1.2) + sign(-3.0)"), -1.0);
  EXPECT_DOUBLE_EQ(value("exp(score) + exp2(score) + log(score) + sqrt(score)"),
                   std::exp(0.75) + std::exp2(0.75) + std::log(0.75) + std::sqrt(0.75));
  EXPECT_DOUBLE_EQ(value("tanh(score) + sigmoid(score) + sin(score) + cos(score)"),
                   std::tanh(0.75) + 1 / (1 + std::exp(-0.75)) + std::sin(0.75) + std::cos(0.75));
  EXPECT_DOUBLE_EQ(value("rsqrt(score) + erf(score) + relu(-score) + silu(score)"),
                   1 / std::sqrt(0.75) + std::erf(0.75) + 0.75 / (1 + std::exp(-0.75)));
  EXPECT_DOUBLE_EQ(value("atan(score)"), std::atan(0.75));
  EXPECT_DOUBLE_EQ(value("gelu(score)"), 0.375 * (1 + std::erf(0.75 / std::sqrt(2.0))));
}

TEST(Text, ReadsCapturedTensors) {
  EXPECT_EQ(value("slopes[h]"), 0.125);
  EXPECT_EQ(value("doc[i] == doc[j]"), 0);
  EXPECT_EQ(value("table[doc[2], j]"), 5.0);
  EXPECT_EQ(value("table[-1, j - i]"), 4.0) << "from the end";
  EXPECT_EQ(value("one"), 7.0);
  EXPECT_EQ(value("doc[100]"), 2) << "cut to the axis";
}

TEST(Text, ReducesOverLanes) {
  EXPECT_EQ(value("sum(3, table[1, lane])"), 15.0);
  EXPECT_EQ(value("sum(3, table[0, lane]*table[1, lane])"), 32.0);
  EXPECT_EQ(value("sum(4, 2)"), 8);
  EXPECT_EQ(value("any(5, doc[lane] == 2)"), 1);
  EXPECT_EQ(value("all(5, doc[lane] == 2)"), 0);
  EXPECT_EQ(value("sum(5, doc[lane] == 1)"), 2);
}

TEST(Text, NamesParts) { EXPECT_EQ(value("d = i - j; w = d*d; w + d"), 12); }

TEST(Text, IntegersHave32Bits) {
  EXPECT_EQ(value("i*1000000000"), static_cast<std::int32_t>(4000000000U));
  EXPECT_EQ(value("-2147483648"), -2147483648.0);
  expect_parts(message("i + 2147483648"), {"2147483648", "32 bits"});
  expect_parts(message("i + 5000000000*3"), {"5000000000", "32 bits"});
}

TEST(Text, IntegersOfCppKeepTheirValue) {
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(Expression(std::uint64_t{7}).text(), "7");
  EXPECT_EQ(Expression(std::uint8_t{200}).text(), "200");
  EXPECT_EQ(Expression(std::int8_t{-1}).text(), "(-1)");
  EXPECT_EQ(Expression(kMost / 2).text(), "9223372036854775807");
  for (const std::uint64_t wide : {kMost, kMost / 2 + 1}) {
    try {
      const Expression made(wide);
      ADD_FAILURE() << wide << " is " << made.text();
    } catch (const InvalidArgument& error) {
      expect_parts(error.what(), {std::to_string(wide).c_str(), "32 bits"});
    }
  }
}

// A constant that wraps is never meant: torch's integers have 64 bits.
TEST(Text, ConstantsDoNotWrap) {
  EXPECT_EQ(value("0 < 2147483647 + 1"), 1);
  EXPECT_EQ(value("2147483648 - 1"), 2147483647.0);
  EXPECT_EQ(value("-(1 << 31)"), -2147483648.0);
  EXPECT_EQ(value("i & -2147483648"), 0);
  expect_parts(message("2147483647 + 1 < i"), {"2147483648", "32 bits"});
  expect_parts(message("i - (-2147483648 - 1)"), {"-2147483649", "32 bits"});
  expect_parts(message("i < 3*2147483647"), {"6442450941", "32 bits"});
  expect_parts(message("i < 2147483648*2"), {"4294967296", "32 bits"});
  expect_parts(message("i < 1 << 31"), {"2147483648", "32 bits"});
  expect_parts(message("i < pow(2, 40)"), {"4294967296", "32 bits"});
  expect_parts(message("i < abs(-2147483648)"), {"2147483648", "32 bits"});
  expect_parts(message("i < -2147483648 // -1"), {"2147483648", "32 bits"});
  expect_parts(message("i < 9223372036854775807 + 1"), {"9223372036854775807", "32 bits"});
}

TEST(Text, NamesThePositionOfAnError) {
  expect_parts(message("score - "), {"\"score - \"", "at character 9", "expected a number"});
  expect_parts(message("score + slope[h]"), {"at character 9", "\"slope\" is not an operand"});
  expect_parts(message("abs(i, j)"), {"at character 1", "abs takes 1 arguments, not 2"});
  expect_parts(message("table[i]"), {"at character 1", "table", "takes 2 indices, not 1"});
  expect_parts(message("slopes[0.5]"), {"index of slopes is a real"});
  expect_parts(message("slopes"), {"takes 1 indices, not 0"});
  expect_parts(message("score & 1"), {"at character 7", "& takes booleans or integers"});
  expect_parts(message("i and j"), {"and takes booleans, not an integer"});
  expect_parts(message("0 <= i < 5"), {"comparisons do not chain", "&"});
  expect_parts(message("i == j == 5"), {"comparisons do not chain"});
  expect_parts(message("where(i, 1, 2)"), {"condition of where takes booleans"});
  expect_parts(message("lane + 1"), {"lane is used outside"});
  expect_parts(message("any(65, lane == i)"), {"1 to 64 lanes, not 65"});
  expect_parts(message("any(i, lane == i)"), {"constant number of lanes"});
  expect_parts(message("any(2, all(2, lane == i))"), {"cannot hold another"});
  expect_parts(message("pow(i, j)"), {"constant exponent"});
  expect_parts(message("i + 1 2"), {"at character 7", "expected the end"});
  expect_parts(message("2x"), {"at character 2", "letter after a number"});
  expect_parts(message("99999999999999999999"), {"out of range"});
  expect_parts(message("doc = 1; doc"), {"\"doc\" is already defined"});
  expect_parts(message(std::string(5000, '(')), {"nested too deep"});
  expect_parts(message(std::string(5000, '-') + "i"), {"nested"});
}

TEST(Text, WritesWhatItReads) {
  Tables tables;
  for (const char* text : {
           "score - 0.1*abs(i-j)",
           "i - j < 1024 | j < 64",
           "where(doc[i] == doc[j] & i >= j, score*one, -inf)",
           "sum(3, table[1, lane]*slopes[lane]) + score // 2 % 3",
           "d = i - j; where(d < 0, -d, d*d) + tanh(float(d) / 20)*score",
           "~(i & 7) ^ j << 2",
           "not (i == j) && pow(score, 2.5) > 1",
           "any(5, doc[lane] != i) | true",
           "min(score, max(-1.5, 2))",
       }) {
    const Expression read = Expression::parse(text, tables.captures);
    const std::string written = read.text();
    const Expression again = Expression::parse(written, tables.captures);
    EXPECT_EQ(again.text(), written);
    EXPECT_EQ(expression::lower(again).program()->text, expression::lower(read).program()->text)
        << written;
  }
}

TEST(Text, StaysShortWhereTheDagIsShared) {
  Expression x = expression::score();
  for (int n = 0; n < 100; ++n) x = x * x;
  EXPECT_LT(x.text().size(), 5000U);
  EXPECT_EQ(expression::lower(x).program()->nodes.size(), 101U);
}

TEST(Text, RefusesNamesOfItsOwn) {
  float x = 0;
  const Tensor t = Tensor::contiguous(&x, DType::float32, {1});
  for (const char* name : {"", "i", "exp", "2a", "a b", "where", "lane", "or"}) {
    EXPECT_THROW(Captured(name, t), InvalidArgument) << name;
  }
  EXPECT_THROW(Captured("t", Tensor{}), InvalidArgument);
}

}  // namespace
}  // namespace tilewise
