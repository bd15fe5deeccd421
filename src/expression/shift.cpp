#include "expression/shift.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "expression/range.h"

namespace tilewise::expression {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Range leaf(const Node& node, const Domain& domain) {
  switch (node.op) {
    case Op::score:
      return reals(0.0, 0.0);
    case Op::batch:
      return integers(0, std::max<std::int64_t>(1, domain.batch) - 1);
    case Op::head:
      return integers(0, std::max<std::int64_t>(1, domain.heads) - 1);
    case Op::query:
      return integers(0, std::max<std::int64_t>(1, domain.queries) - 1);
    case Op::key:
      return integers(0, std::max<std::int64_t>(1, domain.keys) - 1);
    case Op::query_length:
      return integers(domain.same_lengths ? domain.queries : 0, domain.queries);
    case Op::key_length:
      return integers(domain.same_lengths ? domain.keys : 0, domain.keys);
    case Op::constant:
      return node.type == Type::real ? stored_reals(node.real, node.real, std::isnan(node.real))
                                     : integers(node.integer, node.integer);
    default:
      return anything(node.type);
  }
}

std::vector<Range> ranges_of(const Program& program, const Domain& domain) {
  std::vector<Range> ranges(program.nodes.size());
  for (std::size_t n = 0; n < ranges.size(); ++n) {
    const Node& node = program.nodes[n];
    const bool opaque =
        node.op == Op::load || node.op == Op::any || node.op == Op::all || node.op == Op::sum;
    std::array<Range, 4> args;
    for (std::size_t a = 0; a < node.count; ++a)
      args[a] = ranges[static_cast<std::size_t>(node.args[a])];
    if (node.op == Op::sum && node.type == Type::real) {
      const auto lanes = static_cast<double>(node.integer);
      ranges[n] = reals(std::min(lanes * args[0].least, 0.0), std::max(lanes * args[0].most, 0.0),
                        args[0].nan);
    } else if (opaque) {
      ranges[n] = anything(node.type);
    } else if (node.count == 0) {
      ranges[n] = leaf(node, domain);
    } else {
      const auto last = static_cast<std::size_t>(node.args[node.count - 1U]);
      ranges[n] = apply(node.op, program.nodes[last].type, std::span(args).first(node.count));
    }
  }
  return ranges;
}

double magnitude(const Range& x) { return std::max(std::fabs(x.least), std::fabs(x.most)); }

}  // namespace

double largest_shift(const Program& score, const Domain& domain) {
  return magnitude(ranges_of(score, domain)[static_cast<std::size_t>(score.result)]);
}

double largest_shift(const Affine& affine, const Domain& domain, bool sees_diagonal, bool causal) {
  const std::vector<Range> ranges = ranges_of(affine.program, domain);
  const auto coefficient = [&](std::int32_t node) {
    return node < 0 ? reals(0.0, 0.0) : ranges[static_cast<std::size_t>(node)];
  };
  const auto times = [](const Range& x, double rows) {
    return magnitude(x) == 0.0 ? 0.0 : magnitude(x) * rows;
  };
  const auto queries = static_cast<double>(domain.queries);
  const auto keys = static_cast<double>(domain.keys);
  const Linear& by = affine.shift;
  const double apart = std::max(queries, keys) + std::fabs(static_cast<double>(by.constant)) +
                       std::fabs(static_cast<double>(by.query_length)) * queries +
                       std::fabs(static_cast<double>(by.key_length)) * keys;
  // A term that falls from the diagonal moves a row that sees it by what is left there.
  const bool of_lengths = by.query_length != 0 || by.key_length != 0;
  const bool is_offset = by.key_length == -by.query_length && std::abs(by.key_length) <= 1;
  const double left =
      of_lengths && !is_offset ? apart : std::fabs(static_cast<double>(by.constant));
  const auto of_distance = [&](const Range& x, bool falls) {
    if (magnitude(x) == kInfinity) return 0.0;
    return magnitude(x) * (falls ? left : apart);
  };
  const Range distance = coefficient(affine.distance), ahead = coefficient(affine.ahead);
  return of_distance(distance, sees_diagonal && distance.least >= 0.0) +
         of_distance(ahead, sees_diagonal && causal && ahead.least >= 0.0) +
         times(coefficient(affine.row), queries) + times(coefficient(affine.column), keys) +
         times(coefficient(affine.constant), 1.0);
}

}  // namespace tilewise::expression
