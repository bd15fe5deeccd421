#include "expression/interpret.h"

#include <array>

#include "reference/elements.h"

namespace tilewise::expression {

Interpreter::Interpreter(const Program& program, std::span<const Tensor> captures)
    : program_(program), captures_(captures), values_(program.nodes.size()) {
  for (std::size_t n = 0; n < program.nodes.size(); ++n) {
    if ((program.nodes[n].depends & kLane) != 0) {
      lane_nodes_.push_back(static_cast<std::int32_t>(n));
    }
  }
}

void Interpreter::turn_to(const Point& point) {
  point_ = point;
  for (std::size_t n = 0; n < program_.nodes.size(); ++n) {
    const Node& node = program_.nodes[n];
    if ((node.depends & kLane) == 0) values_[n] = evaluate(node);
  }
}

void Interpreter::turn_to_lane(std::int64_t lane) {
  lane_ = lane;
  for (const std::int32_t n : lane_nodes_) {
    values_[static_cast<std::size_t>(n)] = evaluate(program_.nodes[static_cast<std::size_t>(n)]);
  }
}

Value Interpreter::loaded(const Node& node) const {
  const Tensor& t = captures_[static_cast<std::size_t>(node.capture)];
  std::int64_t at = 0;
  for (std::size_t n = 0; n < node.count; ++n) {
    at += in_axis(integer(node.args[n]), t.sizes[n]) * t.strides[n];
  }
  if (t.dtype == DType::int64) return {.integer = wrap32(static_cast<std::int64_t*>(t.data)[at])};
  const double value = reference::load(t, at);
  if (node.type == Type::real) return {.real = value};
  const auto whole = static_cast<std::int64_t>(value);
  return {.integer = node.type == Type::boolean && whole != 0 ? 1 : whole};
}

Value Interpreter::reduced(const Node& node) {
  Value sum{.real = 0.0, .integer = node.op == Op::all ? 1 : 0};
  for (std::int64_t lane = 0; lane < node.integer; ++lane) {
    turn_to_lane(lane);
    const Value& body = values_[static_cast<std::size_t>(node.args[0])];
    sum.real += body.real;
    sum.integer = node.op == Op::any   ? sum.integer | body.integer
                  : node.op == Op::all ? sum.integer & body.integer
                                       : wrap32(sum.integer + body.integer);
  }
  return sum;
}

Value Interpreter::evaluate(const Node& node) {
  switch (node.op) {
    case Op::score:
      return {.real = point_.score};
    case Op::batch:
      return {.integer = point_.b};
    case Op::head:
      return {.integer = point_.h};
    case Op::query:
      return {.integer = point_.i};
    case Op::key:
      return {.integer = point_.j};
    case Op::query_length:
      return {.integer = point_.query_length};
    case Op::key_length:
      return {.integer = point_.key_length};
    case Op::lane:
      return {.integer = lane_};
    case Op::constant:
      return {.real = node.real, .integer = node.integer};
    case Op::load:
      return loaded(node);
    case Op::any:
    case Op::all:
    case Op::sum:
      return reduced(node);
    default:
      break;
  }
  std::array<Value, 4> args{};
  for (std::size_t n = 0; n < node.count; ++n) {
    args[n] = values_[static_cast<std::size_t>(node.args[n])];
  }
  const std::int32_t last = node.args[node.count - 1U];
  const Type operands = program_.nodes[static_cast<std::size_t>(last)].type;
  return apply(node.op, operands, std::span(args).first(node.count));
}

}  // namespace tilewise::expression
