#include "expression/nodes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "expression/evaluate.h"
#include "tilewise/error.h"

namespace tilewise::expression {
namespace {

bool commutes(Op op) {
  switch (op) {
    case Op::add:
    case Op::multiply:
    case Op::minimum:
    case Op::maximum:
    case Op::equal:
    case Op::not_equal:
    case Op::logical_and:
    case Op::logical_or:
    case Op::logical_xor:
    case Op::bit_and:
    case Op::bit_or:
    case Op::bit_xor:
      return true;
    default:
      return false;
  }
}

std::uint8_t leaf_depends(Op op) {
  switch (op) {
    case Op::score:
      return kScore;
    case Op::batch:
    case Op::query_length:
    case Op::key_length:
      return kBatch;
    case Op::head:
      return kHead;
    case Op::query:
      return kQuery;
    case Op::key:
      return kKey;
    case Op::lane:
      return kLane;
    default:
      return kUniform;
  }
}

/// A diagonal beside a query or a key is both.
std::uint8_t plain(std::uint8_t depends) {
  const bool pair = (depends & (kQuery | kKey)) != 0 && (depends & kDiagonal) != 0;
  if (!pair) return depends;
  return static_cast<std::uint8_t>((depends & ~kDiagonal) | kQuery | kKey);
}

std::string node_text(const Node& node) {
  if (node.op == Op::constant && node.type == Type::real) {
    std::array<char, 40> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), node.real,
                                   std::chars_format::hex);
    return {digits.data(), end.ptr};
  }
  if (node.op == Op::constant) {
    return (node.type == Type::boolean ? "b" : "") + std::to_string(node.integer);
  }
  std::string text = "o" + std::to_string(static_cast<int>(node.op));
  if (node.op == Op::load) text += "c" + std::to_string(node.capture);
  if (node.op == Op::any || node.op == Op::all || node.op == Op::sum) {
    text += "x" + std::to_string(node.integer);
  }
  for (int n = 0; n < node.count; ++n) {
    text += (n == 0 ? "(" : ",") + std::to_string(node.args[static_cast<std::size_t>(n)]);
  }
  return node.count > 0 ? text + ")" : text;
}

}  // namespace

Type result_type(Op op, Type operands) {
  switch (op) {
    case Op::equal:
    case Op::not_equal:
    case Op::less:
    case Op::less_equal:
    case Op::logical_and:
    case Op::logical_or:
    case Op::logical_xor:
    case Op::logical_not:
    case Op::to_boolean:
    case Op::any:
    case Op::all:
      return Type::boolean;
    case Op::to_integer:
      return Type::integer;
    case Op::to_real:
      return Type::real;
    default:
      return operands;
  }
}

std::size_t NodeTable::Hash::operator()(const Node& node) const {
  std::uint64_t hash =
      static_cast<std::uint64_t>(node.op) << 8 | static_cast<std::uint64_t>(node.type);
  const auto mix = [&](std::uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  };
  for (const std::int32_t arg : node.args) mix(static_cast<std::uint32_t>(arg));
  mix(static_cast<std::uint32_t>(node.capture));
  mix(std::bit_cast<std::uint64_t>(node.real));
  mix(static_cast<std::uint64_t>(node.integer));
  return static_cast<std::size_t>(hash);
}

// By bits: 0.0 and -0.0 are two constants, and NaN is one.
bool NodeTable::Equal::operator()(const Node& a, const Node& b) const {
  return a.op == b.op && a.type == b.type && a.count == b.count && a.args == b.args &&
         a.capture == b.capture && a.integer == b.integer &&
         std::bit_cast<std::uint64_t>(a.real) == std::bit_cast<std::uint64_t>(b.real);
}

void require_32_bits(std::int64_t constant) {
  if (wrap32(constant) != constant) fail_32_bits(std::to_string(constant));
}

void fail_32_bits(const std::string& constant) {
  throw InvalidArgument("expression: the integer " + constant +
                        " does not fit in 32 bits; write it as a real");
}

NodeTable::NodeTable(const Program& program) : captures_(program.captures) {
  for (const Node& node : program.nodes) intern(node);
}

std::int32_t NodeTable::leaf(Op op) {
  return intern({.op = op, .type = op == Op::score ? Type::real : Type::integer});
}
std::int32_t NodeTable::real(double value) { return intern({.type = Type::real, .real = value}); }
std::int32_t NodeTable::integer(std::int64_t value) {
  // The text -2147483648 is a number and its sign: alone, finish() refuses the number.
  if (value != std::int64_t{1} << 31) require_32_bits(value);
  return intern({.type = Type::integer, .integer = value});
}
std::int32_t NodeTable::boolean(bool value) {
  return intern({.type = Type::boolean, .integer = value ? 1 : 0});
}

std::int32_t NodeTable::load(std::int32_t capture, std::span<const std::int32_t> index) {
  const DType dtype = captures_[static_cast<std::size_t>(capture)].dtype;
  Node node{.op = Op::load,
            .type = is_floating(dtype)        ? Type::real
                    : dtype == DType::boolean ? Type::boolean
                                              : Type::integer,
            .count = static_cast<std::uint8_t>(index.size()),
            .capture = capture};
  std::copy(index.begin(), index.end(), node.args.begin());
  return intern(node);
}

std::int32_t NodeTable::reduce(Op op, std::int64_t count, std::int32_t body) {
  if (((*this)[body].depends & kLane) == 0) {
    if (op != Op::sum) return body;
    const bool whole = (*this)[body].type == Type::integer;
    return make(Op::multiply, {body, whole ? integer(count) : real(static_cast<double>(count))});
  }
  Node node{.op = op, .type = (*this)[body].type, .count = 1, .integer = count};
  node.args[0] = body;
  return intern(node);
}

std::int32_t NodeTable::make(Op op, std::initializer_list<std::int32_t> args) {
  return make(op, std::span(args.begin(), args.size()));
}

std::int32_t NodeTable::make(Op op, std::span<const std::int32_t> given) {
  std::array<std::int32_t, 4> ordered{};
  std::copy(given.begin(), given.end(), ordered.begin());
  const std::span<const std::int32_t> args(ordered.data(), given.size());
  if (commutes(op) && shape(ordered[0]) > shape(ordered[1])) std::swap(ordered[0], ordered[1]);
  const Type operands = (*this)[args.back()].type;  // where's values come last
  const bool constant = std::all_of(
      args.begin(), args.end(), [&](std::int32_t arg) { return (*this)[arg].op == Op::constant; });
  if (constant) {
    std::array<Value, 4> values{};
    for (std::size_t n = 0; n < args.size(); ++n) {
      values[n] = {.real = (*this)[args[n]].real, .integer = (*this)[args[n]].integer};
    }
    const Value value = fold(op, operands, std::span(values).first(args.size()));
    switch (result_type(op, operands)) {
      case Type::boolean:
        return boolean(value.integer != 0);
      case Type::integer:
        return integer(value.integer);
      case Type::real:
        return real(value.real);
    }
  }
  if (const std::int32_t same = shortened(op, args); same >= 0) return same;
  Node node{.op = op,
            .type = result_type(op, operands),
            .count = static_cast<std::uint8_t>(args.size()),
            .args = ordered};
  return intern(node);
}

bool NodeTable::is_real(std::int32_t node, double value) const {
  const Node& n = (*this)[node];
  return n.op == Op::constant && n.type == Type::real && n.real == value;
}

bool NodeTable::is_integer(std::int32_t node, std::int64_t value) const {
  const Node& n = (*this)[node];
  return n.op == Op::constant && n.type != Type::real && n.integer == value;
}

std::int32_t NodeTable::shortened(Op op, std::span<const std::int32_t> args) {
  const std::int32_t a = args[0];
  const std::int32_t b = args.size() > 1 ? args[1] : -1;
  const bool reals = (*this)[args.back()].type == Type::real;
  // NOTE x + 0.0 is x here for x = -0.0 too, whose sign no sum of logits shows.
  const auto is = [&](std::int32_t node, int value) {
    return reals ? is_real(node, value) : is_integer(node, value);
  };
  switch (op) {
    case Op::add:
      return is(a, 0) ? b : is(b, 0) ? a : -1;
    case Op::subtract:
      if (a == b && !reals) return integer(0);
      return is(b, 0) ? a : is(a, 0) ? make(Op::negate, {b}) : -1;
    case Op::multiply:
      if (!reals && (is(a, 0) || is(b, 0))) return integer(0);
      return is(a, 1) ? b : is(b, 1) ? a : -1;
    case Op::divide:
      // By a power of two: the product is the same number.
      if (const Node by = (*this)[b]; by.op == Op::constant && by.real != 0.0) {
        int exponent = 0;
        if (by.real == 1.0) return a;
        if (std::fabs(std::frexp(by.real, &exponent)) == 0.5 && std::abs(exponent) < 100) {
          return make(Op::multiply, {a, real(1.0 / by.real)});
        }
      }
      return -1;
    case Op::floor_divide:
      return !reals && is(b, 1) ? a : -1;
    case Op::negate:
      return (*this)[a].op == Op::negate ? (*this)[a].args[0] : -1;
    case Op::minimum:
    case Op::maximum:
      return a == b ? a : -1;
    case Op::equal:
    case Op::less_equal:
      return a == b && !reals ? boolean(true) : -1;
    case Op::not_equal:
    case Op::less:
      return a == b && !reals ? boolean(false) : -1;
    case Op::logical_and:
      if (is_integer(a, 0) || is_integer(b, 0)) return boolean(false);
      return is_integer(a, 1) || a == b ? b : is_integer(b, 1) ? a : -1;
    case Op::logical_or:
      if (is_integer(a, 1) || is_integer(b, 1)) return boolean(true);
      return is_integer(a, 0) || a == b ? b : is_integer(b, 0) ? a : -1;
    case Op::logical_xor:
      return is_integer(a, 0) ? b : is_integer(b, 0) ? a : -1;
    case Op::logical_not: {
      const Node n = (*this)[a];
      if (n.op == Op::logical_not) return n.args[0];
      if (n.op == Op::equal) return make(Op::not_equal, {n.args[0], n.args[1]});
      if (n.op == Op::not_equal) return make(Op::equal, {n.args[0], n.args[1]});
      // With a NaN neither a < b nor b <= a holds.
      if ((n.op == Op::less || n.op == Op::less_equal) && (*this)[n.args[0]].type != Type::real) {
        return make(n.op == Op::less ? Op::less_equal : Op::less, {n.args[1], n.args[0]});
      }
      return -1;
    }
    case Op::where:
      if ((*this)[a].op == Op::constant) return is_integer(a, 1) ? b : args[2];
      return b == args[2] ? b : -1;
    default:
      return -1;
  }
}

std::int32_t NodeTable::intern(Node node) {
  node.depends = kUniform;
  const auto [at, added] = known_.try_emplace(node, size());
  if (added) {
    const Affine affine = affine_of(node);
    node.depends = depends_of(node, affine);
    nodes_.push_back(node);
    affine_.push_back(affine);
    shapes_.push_back(shape_of(node));
  }
  return at->second;
}

std::size_t NodeTable::shape_of(Node node) const {
  std::size_t shape = 0;
  for (std::size_t n = 0; n < node.count; ++n) {
    shape = (shape ^ this->shape(node.args[n])) * 0x9E3779B97F4A7C15U + n;
    node.args[n] = 0;
  }
  return shape ^ Hash()(node);
}

NodeTable::Affine NodeTable::affine_of(const Node& node) const {
  // Coefficients beyond this are no diagonals, and their sums could overflow.
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  const auto arg = [&](int n) {
    return affine_[static_cast<std::size_t>(node.args[static_cast<std::size_t>(n)])];
  };
  Affine made;
  switch (node.op) {
    case Op::query:
      return {.known = true, .i = 1};
    case Op::key:
      return {.known = true, .j = 1};
    case Op::to_real:
      return arg(0);
    case Op::negate:
      made = arg(0);
      made.i = -made.i;
      made.j = -made.j;
      return made;
    case Op::add:
    case Op::subtract: {
      const std::int64_t sign = node.op == Op::add ? 1 : -1;
      const Affine a = arg(0);
      const Affine b = arg(1);
      if (!a.known || !b.known) return {};
      made = {.known = true,
              .i = a.i + sign * b.i,
              .j = a.j + sign * b.j,
              .rest = static_cast<std::uint8_t>(a.rest | b.rest)};
      break;
    }
    case Op::multiply: {
      for (const int by : {0, 1}) {
        const Node& factor = (*this)[node.args[static_cast<std::size_t>(by)]];
        if (factor.op != Op::constant || factor.type != Type::integer) continue;
        const Affine a = arg(1 - by);
        if (!a.known || std::abs(factor.integer) > kMost) return {};
        made = {
            .known = true, .i = a.i * factor.integer, .j = a.j * factor.integer, .rest = a.rest};
      }
      break;
    }
    default:
      break;
  }
  if (made.known) return std::max(std::abs(made.i), std::abs(made.j)) > kMost ? Affine{} : made;
  if (node.op == Op::score || node.op == Op::lane) return {};
  // Whatever depends on neither i nor j is a rest.
  const std::uint8_t depends = depends_of(node, {});
  if ((depends & (kQuery | kKey | kDiagonal)) != 0) return {};
  return {.known = true, .rest = depends};
}

std::uint8_t NodeTable::depends_of(const Node& node, const Affine& affine) const {
  if (affine.known && affine.i != 0 && affine.i + affine.j == 0) {
    return static_cast<std::uint8_t>(affine.rest | kDiagonal);
  }
  std::uint8_t depends = leaf_depends(node.op);
  for (int n = 0; n < node.count; ++n) {
    depends |= (*this)[node.args[static_cast<std::size_t>(n)]].depends;
  }
  if (node.op == Op::any || node.op == Op::all || node.op == Op::sum) {
    depends = static_cast<std::uint8_t>(depends & ~kLane);
  }
  return plain(depends);
}

Program NodeTable::finish(std::span<std::int32_t*> roots) const {
  Program program;
  program.captures = captures_;
  for (const CaptureType& capture : captures_) {
    program.text += std::string(dtype_name(capture.dtype)) + std::to_string(capture.rank) + ' ';
  }
  std::vector<std::int32_t> moved(nodes_.size(), -1);
  const auto place = [&](std::int32_t n) {
    Node node = (*this)[n];
    for (std::size_t a = 0; a < node.count; ++a) {
      node.args[a] = moved[static_cast<std::size_t>(node.args[a])];
    }
    if (node.op == Op::constant) require_32_bits(node.integer);
    moved[static_cast<std::size_t>(n)] = static_cast<std::int32_t>(program.nodes.size());
    program.nodes.push_back(node);
    program.text += node_text(node) + ';';
  };
  // Depth first: a node is placed when it is met after its arguments.
  for (std::int32_t* root : roots) {
    std::vector<std::int32_t> open{*root};
    while (!open.empty()) {
      const std::int32_t n = open.back();
      if (moved[static_cast<std::size_t>(n)] >= 0) {
        open.pop_back();
        continue;
      }
      const Node& node = (*this)[n];
      bool ready = true;
      for (std::size_t a = node.count; a-- > 0;) {
        if (moved[static_cast<std::size_t>(node.args[a])] >= 0) continue;
        open.push_back(node.args[a]);
        ready = false;
      }
      if (!ready) continue;
      place(n);
      open.pop_back();
    }
    *root = moved[static_cast<std::size_t>(*root)];
  }
  if (program.nodes.size() > kMaxNodes) {
    throw InvalidArgument("expression: " + std::to_string(program.nodes.size()) +
                          " operations, more than " + std::to_string(kMaxNodes));
  }
  for (const std::int32_t* root : roots) program.text += std::to_string(*root) + ' ';
  return program;
}

}  // namespace tilewise::expression
