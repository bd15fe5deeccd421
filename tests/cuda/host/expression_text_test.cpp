/// The device text of programs that are built here node by node.
#include "cuda/host/expression_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <string>

namespace tilewise::cuda {
namespace {

using expression::Node;
using expression::Op;
using expression::Program;
using expression::Type;

struct Builder {
  Program program;

  std::int32_t add(Node n) {
    program.nodes.push_back(n);
    return program.result = static_cast<std::int32_t>(program.nodes.size()) - 1;
  }
  std::int32_t leaf(Op op, Type type, std::uint8_t depends) {
    return add({.op = op, .type = type, .depends = depends});
  }
  std::int32_t integer(std::int64_t value) {
    return add({.op = Op::constant, .type = Type::integer, .integer = value});
  }
  std::int32_t real(double value) {
    return add({.op = Op::constant, .type = Type::real, .real = value});
  }
  std::int32_t apply(Op op, Type type, std::initializer_list<std::int32_t> args) {
    Node n = {.op = op, .type = type};
    for (const std::int32_t a : args) {
      n.args[n.count++] = a;
      n.depends |= program.nodes[static_cast<std::size_t>(a)].depends;
    }
    return add(n);
  }
  std::int32_t load(std::int32_t capture, Type type, std::initializer_list<std::int32_t> args) {
    const std::int32_t at = apply(Op::load, type, args);
    program.nodes.back().capture = capture;
    return at;
  }
};

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// A function of one query and key that reads a slope of the head and a document of each side.
Program documents_and_slopes() {
  Builder b;
  b.program.captures = {{DType::float32, 1}, {DType::int32, 2}};
  const auto score = b.leaf(Op::score, Type::real, expression::kScore);
  const auto head = b.leaf(Op::head, Type::integer, expression::kHead);
  const auto batch = b.leaf(Op::batch, Type::integer, expression::kBatch);
  const auto i = b.leaf(Op::query, Type::integer, expression::kQuery);
  const auto j = b.leaf(Op::key, Type::integer, expression::kKey);
  const auto slope = b.load(0, Type::real, {head});
  const auto row = b.load(1, Type::integer, {batch, i});
  const auto column = b.load(1, Type::integer, {batch, j});
  const auto distance = b.apply(Op::subtract, Type::integer, {row, column});
  const auto far = b.apply(Op::to_real, Type::real, {distance});
  b.apply(Op::subtract, Type::real, {score, b.apply(Op::multiply, Type::real, {slope, far})});
  return b.program;
}

TEST(ExpressionText, WorksOutEachPartWhereItIsKnown) {
  const std::string text = score_text(documents_and_slopes(), {.index = 1, .first_capture = 2});
  EXPECT_TRUE(holds(text, "struct tilewise::tile::ScoreFunction<1> {\n")) << text;
  const std::size_t uniform = text.find("Uniform uniform("), row = text.find("Row row("),
                    column = text.find("Column column("), value = text.find("float value(");
  ASSERT_LT(uniform, row);
  ASSERT_LT(row, column);
  ASSERT_LT(column, value);
  // One load in each part, none for a pair, of tensors counted from the function's first.
  const auto part = [&](std::size_t from, std::size_t to) { return text.substr(from, to - from); };
  EXPECT_TRUE(holds(part(uniform, row), "Stored::float32>(t.at[2], ")) << text;
  EXPECT_TRUE(holds(part(uniform, row), "{{p.h}})")) << text;
  EXPECT_TRUE(holds(part(row, column), "Stored::int32>(t.at[3], ")) << text;
  EXPECT_TRUE(holds(part(row, column), "{{p.b, i}})")) << text;
  EXPECT_TRUE(holds(part(column, value), "{{p.b, j}})")) << text;
  EXPECT_FALSE(holds(text.substr(value), "load")) << text;
  EXPECT_TRUE(holds(text.substr(value), "r.v6 - c.v7")) << text;
  EXPECT_TRUE(holds(text.substr(value), "u.v5 * ")) << text;
}

TEST(ExpressionText, DependsOnTheProgramAlone) {
  EXPECT_EQ(score_text(documents_and_slopes()), score_text(documents_and_slopes()));
  Program other = documents_and_slopes();
  other.captures[0].dtype = DType::bfloat16;
  EXPECT_NE(score_text(other), score_text(documents_and_slopes()));
}

/// The text of a result of two operands: i, which is not negative, i - j, and an integer.
std::string of_integers(Op op, bool natural, std::int64_t divisor) {
  Builder b;
  const auto i = b.leaf(Op::query, Type::integer, expression::kQuery);
  const auto j = b.leaf(Op::key, Type::integer, expression::kKey);
  const auto distance = b.apply(Op::subtract, Type::integer, {i, j});
  const auto by = b.integer(divisor);
  const auto x = b.apply(op, Type::integer, {natural ? i : distance, by});
  b.apply(Op::to_real, Type::real, {x});
  return score_text(b.program);
}

TEST(ExpressionText, QuotientsFloor) {
  EXPECT_TRUE(holds(of_integers(Op::floor_divide, true, 5), "i / 5"));
  EXPECT_TRUE(holds(of_integers(Op::modulo, true, 5), "i % 5"));
  EXPECT_TRUE(holds(of_integers(Op::floor_divide, false, 5), "expression::floor_divide("));
  EXPECT_TRUE(holds(of_integers(Op::modulo, false, -3), "expression::modulo("));
  // A shift and a mask floor whatever the sign.
  EXPECT_TRUE(holds(of_integers(Op::floor_divide, false, 16), " >> 4"));
  EXPECT_TRUE(holds(of_integers(Op::modulo, false, 16), " & 15"));
}

TEST(ExpressionText, ConstantsAreExact) {
  Builder b;
  const auto score = b.leaf(Op::score, Type::real, expression::kScore);
  const auto sum = b.apply(Op::add, Type::real, {score, b.real(0.1)});
  const auto less = b.apply(Op::subtract, Type::real, {sum, b.real(-HUGE_VAL)});
  const auto over = b.apply(Op::divide, Type::real, {less, b.real(20.0)});
  b.apply(Op::multiply, Type::real, {over, b.real(3.0)});
  const std::string text = score_text(b.program);
  EXPECT_TRUE(holds(text, "x + 0.1F")) << text;
  EXPECT_TRUE(holds(text, "(-infinity())")) << text;
  EXPECT_TRUE(holds(text, " * 0.05F")) << text << "a score is multiplied by the inverse";
  EXPECT_TRUE(holds(text, " * 3.0F")) << text;
}

TEST(ExpressionText, NamesWhatKernelsDoNotHold) {
  Builder b;
  b.integer(std::int64_t{1} << 40);
  EXPECT_TRUE(holds(expression_refusal(b.program), "1099511627776"));
  EXPECT_EQ(expression_refusal(documents_and_slopes()), "");
}

TEST(ExpressionText, SumsOverLanesAreLoops) {
  Builder b;
  b.program.captures = {{DType::float32, 2}};
  const auto score = b.leaf(Op::score, Type::real, expression::kScore);
  const auto i = b.leaf(Op::query, Type::integer, expression::kQuery);
  const auto lane = b.leaf(Op::lane, Type::integer, expression::kLane);
  const auto element = b.load(0, Type::real, {i, lane});
  const auto sum = b.apply(Op::sum, Type::real, {element});
  b.program.nodes.back().integer = 16;
  b.program.nodes.back().depends = expression::kQuery;
  b.apply(Op::add, Type::real, {score, sum});
  const std::string text = score_text(b.program);
  const std::size_t loop = text.find("for (int lane = 0; lane < 16; ++lane)");
  ASSERT_NE(loop, std::string::npos) << text;
  EXPECT_LT(loop, text.find("Column column(")) << "of a row: worked out with it";
  EXPECT_TRUE(holds(text.substr(loop), "{{i, lane}}")) << text;
  EXPECT_TRUE(holds(text, "x + r.v")) << text;
}

}  // namespace
}  // namespace tilewise::cuda
