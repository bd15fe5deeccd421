#include "expression/recognize.h"

#include <array>
#include <cstdlib>

#include "expression/nodes.h"

namespace tilewise::expression {
namespace {

/// Beyond it a sum could leave 32 bits, where programs wrap and linear forms do not.
constexpr std::int64_t kMostConstant = std::int64_t{1} << 28;

const Node& at(const Program& program, std::int32_t node) {
  return program.nodes[static_cast<std::size_t>(node)];
}

Linear sum(const Linear& a, const Linear& b, std::int64_t sign) {
  return {.query = a.query + sign * b.query,
          .key = a.key + sign * b.key,
          .query_length = a.query_length + sign * b.query_length,
          .key_length = a.key_length + sign * b.key_length,
          .constant = a.constant + sign * b.constant};
}

bool small(const Linear& x) {
  for (const std::int64_t factor : {x.query, x.key, x.query_length, x.key_length}) {
    if (std::abs(factor) > 1) return false;
  }
  return std::abs(x.constant) <= kMostConstant;
}

bool is_real(const Node& node, double value) {
  return node.op == Op::constant && node.type == Type::real && node.real == value;
}

/// x / c, or x times the number 1 / c.
bool divides(const Program& p, std::int32_t node, Op of, double c) {
  const Node& n = at(p, node);
  if (n.count != 2) return false;
  const Node& a = at(p, n.args[0]);
  const Node& b = at(p, n.args[1]);
  if (n.op == Op::divide) return a.op == of && is_real(b, c);
  if (n.op != Op::multiply) return false;
  return (a.op == of && is_real(b, 1.0 / c)) || (b.op == of && is_real(a, 1.0 / c));
}

/// A load of a float32 tensor at [h] or [b, h].
bool is_slope(const Program& p, const Node& node) {
  if (node.op != Op::load) return false;
  if (p.captures[static_cast<std::size_t>(node.capture)].dtype != DType::float32) return false;
  if (at(p, node.args[node.count - 1U]).op != Op::head) return false;
  return node.count == 1 || (node.count == 2 && at(p, node.args[0]).op == Op::batch);
}

/// slope * distance with a distance of integers.
std::optional<Alibi> slope_times_distance(const Program& p, std::int32_t product) {
  const Node& node = at(p, product);
  if (node.op != Op::multiply) return std::nullopt;
  for (const std::size_t side : {0U, 1U}) {
    const Node& slope = at(p, node.args[side]);
    std::int32_t distance = node.args[1 - side];
    if (!is_slope(p, slope)) continue;
    bool absolute = false;
    // |x| of an integer, and |float(x)|, are one number.
    for (int step = 0; step < 2; ++step) {
      const Node& d = at(p, distance);
      if (d.op == Op::absolute) {
        absolute = true;
        distance = d.args[0];
      } else if (d.op == Op::to_real) {
        distance = d.args[0];
      }
    }
    if (at(p, distance).op == Op::absolute) {
      absolute = true;
      distance = at(p, distance).args[0];
    }
    const std::optional<Linear> linear = linear_form(p, distance);
    if (!linear) return std::nullopt;
    return Alibi{.capture = slope.capture, .distance = *linear, .absolute = absolute};
  }
  return std::nullopt;
}

void collect(const Program& p, std::int32_t node, Conjuncts& found) {
  const Node& n = at(p, node);
  if (n.op == Op::logical_and) {
    collect(p, n.args[0], found);
    collect(p, n.args[1], found);
    return;
  }
  if ((n.op == Op::less || n.op == Op::less_equal) && at(p, n.args[0]).type == Type::integer) {
    const std::optional<Linear> a = linear_form(p, n.args[0]);
    const std::optional<Linear> b = linear_form(p, n.args[1]);
    if (a && b) {
      Linear difference = sum(*b, *a, -1);
      if (n.op == Op::less) --difference.constant;
      found.linear.push_back(difference);
      found.linear_nodes.push_back(node);
      return;
    }
  }
  found.others.push_back(node);
}

}  // namespace

std::optional<Linear> linear_form(const Program& p, std::int32_t node) {
  const Node& n = at(p, node);
  std::optional<Linear> made;
  switch (n.op) {
    case Op::query:
      return Linear{.query = 1};
    case Op::key:
      return Linear{.key = 1};
    case Op::query_length:
      return Linear{.query_length = 1};
    case Op::key_length:
      return Linear{.key_length = 1};
    case Op::constant:
      if (n.type != Type::real) made = Linear{.constant = n.integer};
      break;
    case Op::negate:
      if (n.type == Type::integer) {
        if (const auto x = linear_form(p, n.args[0])) made = sum({}, *x, -1);
      }
      break;
    case Op::add:
    case Op::subtract:
      if (n.type == Type::integer) {
        const auto a = linear_form(p, n.args[0]);
        const auto b = linear_form(p, n.args[1]);
        if (a && b) made = sum(*a, *b, n.op == Op::add ? 1 : -1);
      }
      break;
    default:
      break;
  }
  return made && small(*made) ? made : std::nullopt;
}

Conjuncts conjuncts(const Program& mask) {
  Conjuncts found;
  collect(mask, mask.result, found);
  return found;
}

Program conjunction(const Program& mask, const std::vector<std::int32_t>& nodes) {
  NodeTable table(mask);
  std::int32_t result = table.boolean(true);
  for (const std::int32_t node : nodes) result = table.make(Op::logical_and, {result, node});
  std::array roots{&result};
  Program program = table.finish(roots);
  program.result = result;
  return program;
}

double softcap_of(const Program& p) {
  const Node& product = at(p, p.result);
  if (product.op != Op::multiply) return 0.0;
  for (const std::size_t side : {0U, 1U}) {
    const Node& cap = at(p, product.args[side]);
    const Node& bounded = at(p, product.args[1 - side]);
    if (cap.op != Op::constant || cap.real <= 0.0 || bounded.op != Op::tanh) continue;
    if (divides(p, bounded.args[0], Op::score, cap.real)) return cap.real;
  }
  return 0.0;
}

std::optional<Alibi> alibi_of(const Program& p) {
  const Node& node = at(p, p.result);
  if (node.op != Op::subtract && node.op != Op::add) return std::nullopt;
  const bool left = at(p, node.args[0]).op == Op::score;
  const std::int32_t score = left ? node.args[0] : node.args[1];
  const std::int32_t product = left ? node.args[1] : node.args[0];
  if (at(p, score).op != Op::score || (node.op == Op::subtract && !left)) return std::nullopt;
  std::int32_t positive = product;
  bool adds = node.op == Op::add;
  if (at(p, product).op == Op::negate) {
    positive = at(p, product).args[0];
    adds = !adds;
  }
  std::optional<Alibi> alibi = slope_times_distance(p, positive);
  if (!alibi || !adds) return alibi;
  if (alibi->absolute) return std::nullopt;  // it would raise far keys
  alibi->distance = sum({}, alibi->distance, -1);
  return alibi;
}

std::optional<DocumentIds> documents_of(const Program& p) {
  const Node& node = at(p, p.result);
  if (node.op != Op::equal) return std::nullopt;
  const Node* sides[] = {&at(p, node.args[0]), &at(p, node.args[1])};
  for (const Node* side : sides) {
    if (side->op != Op::load || side->capture != sides[0]->capture) return std::nullopt;
    if (side->count > 2 || (side->count == 2 && at(p, side->args[0]).op != Op::batch))
      return std::nullopt;
  }
  const auto axis = static_cast<std::size_t>(sides[0]->count - 1);
  const Op first = at(p, sides[0]->args[axis]).op, second = at(p, sides[1]->args[axis]).op;
  const bool both =
      (first == Op::query && second == Op::key) || (first == Op::key && second == Op::query);
  const DType dtype = p.captures[static_cast<std::size_t>(sides[0]->capture)].dtype;
  if (!both || (dtype != DType::int32 && dtype != DType::int64)) return std::nullopt;
  return DocumentIds{.capture = sides[0]->capture, .axis = static_cast<int>(axis)};
}

}  // namespace tilewise::expression
