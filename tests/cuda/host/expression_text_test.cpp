/// The device text of programs that are built here node by node.
#include "cuda/host/expression_text.h"

#include <gtest/gtest.h>

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

TEST(ExpressionText, PartsGoWhereTheyAreKnown) {
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
  const auto distance = b.apply(
      Op::to_real, Type::real,
      {b.apply(Op::absolute, Type::integer, {b.apply(Op::subtract, Type::integer, {row, column})})});
  b.apply(Op::subtract, Type::real,
          {score, b.apply(Op::multiply, Type::real, {slope, distance})});
  const std::string text = score_text(b.program, {1, 0});
  EXPECT_EQ(text, "");
  EXPECT_TRUE(holds(text, "struct tilewise::tile::ScoreFunction<1>"));
}

}  // namespace
}  // namespace tilewise::cuda
