#include "expression/intervals.h"

#include <array>
#include <cmath>

namespace tilewise::expression {

RangeTables::RangeTables(const Function& function) {
  const Program& program = *function.program;
  tables_.resize(function.captures.size());
  for (const Node& node : program.nodes) {
    if (node.op != Op::load) continue;
    const auto capture = static_cast<std::size_t>(node.capture);
    if (tables_[capture] == nullptr) {
      tables_[capture] = std::make_unique<RangeTable>(function.captures[capture], node.type);
    }
  }
}

std::int64_t RangeTables::bytes() const {
  std::int64_t bytes = 0;
  for (const auto& table : tables_) bytes += table != nullptr ? table->bytes() : 0;
  return bytes;
}

Intervals::Intervals(const Program& program, const RangeTables& tables)
    : program_(program), tables_(tables), values_(program.nodes.size()) {
  for (std::size_t n = 0; n < program.nodes.size(); ++n) {
    const std::uint8_t depends = program.nodes[n].depends;
    const bool query = (depends & (kQuery | kDiagonal)) != 0;
    const bool key = (depends & (kKey | kDiagonal)) != 0;
    std::vector<std::int32_t>& nodes = (depends & kLane) != 0 ? of_lane_
                                       : query && key         ? of_both_
                                       : query                ? of_query_
                                       : key                  ? of_key_
                                                              : fixed_;
    nodes.push_back(static_cast<std::int32_t>(n));
  }
}

void Intervals::turn_to(const Head& head) {
  head_ = head;
  fresh_ = true;
}

void Intervals::evaluate_all(const std::vector<std::int32_t>& nodes) {
  for (const std::int32_t n : nodes) {
    values_[static_cast<std::size_t>(n)] = evaluate(program_.nodes[static_cast<std::size_t>(n)]);
  }
}

const Range& Intervals::over(const Box& box) {
  const bool other_queries = fresh_ || box.query != box_.query || box.query_end != box_.query_end;
  const bool other_keys = fresh_ || box.key != box_.key || box.key_end != box_.key_end;
  box_ = box;
  if (fresh_) evaluate_all(fixed_);
  fresh_ = false;
  if (other_queries) evaluate_all(of_query_);
  if (other_keys) evaluate_all(of_key_);
  if (other_queries || other_keys) evaluate_all(of_both_);
  return values_[static_cast<std::size_t>(program_.result)];
}

Range Intervals::reduced(const Node& node) {
  const std::int32_t body = node.args[0];
  const Type type = node.type;
  Range result = type == Type::real ? reals(0.0, 0.0) : integers(0, 0);
  if (node.op == Op::all) result = integers(1, 1);
  const Op joined = node.op == Op::any   ? Op::logical_or
                    : node.op == Op::all ? Op::logical_and
                                         : Op::add;
  for (lane_ = 0; lane_ < node.integer; ++lane_) {
    // NOTE: some of these nodes belong to another reduction and are evaluated for nothing.
    evaluate_all(of_lane_);
    const std::array<Range, 2> args{result, values_[static_cast<std::size_t>(body)]};
    result = apply(joined, type, args);
  }
  return result;
}

Range Intervals::evaluate(const Node& node) {
  switch (node.op) {
    case Op::score:
      return anything(Type::real);
    case Op::batch:
      return integers(head_.b, head_.b);
    case Op::head:
      return integers(head_.h, head_.h);
    case Op::query:
      return integers(box_.query, box_.query_end - 1);
    case Op::key:
      return integers(box_.key, box_.key_end - 1);
    case Op::query_length:
      return integers(head_.query_length, head_.query_length);
    case Op::key_length:
      return integers(head_.key_length, head_.key_length);
    case Op::lane:
      return integers(lane_, lane_);
    case Op::constant:
      return node.type == Type::real ? stored_reals(node.real, node.real, std::isnan(node.real))
                                     : integers(node.integer, node.integer);
    case Op::any:
    case Op::all:
    case Op::sum:
      return reduced(node);
    default:
      break;
  }
  std::array<Range, 4> args;
  for (std::size_t n = 0; n < node.count; ++n) {
    args[n] = values_[static_cast<std::size_t>(node.args[n])];
  }
  const std::span<const Range> given(args.data(), node.count);
  if (node.op == Op::load) return tables_.of(node.capture).over(given);
  const std::int32_t last = node.args[node.count - 1U];
  return apply(node.op, program_.nodes[static_cast<std::size_t>(last)].type, given);
}

}  // namespace tilewise::expression
