#include "expression/derive.h"

#include <string>
#include <utility>
#include <vector>

#include "expression/nodes.h"

namespace tilewise::expression {
namespace {

constexpr double kLn2 = 0.69314718055994530942;
constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kTwoOverSqrtPi = 1.12837916709551257390;
constexpr double kOneOverSqrt2Pi = 0.39894228040143267794;
constexpr std::int32_t kNone = -1;

class Derivation {
 public:
  explicit Derivation(const Program& program)
      : program_(program), table_(program), differs_(program.nodes.size()) {
    for (std::size_t n = 0; n < program.nodes.size(); ++n) differs_[n] = differs(program.nodes[n]);
  }

  Gradient run() {
    std::vector<std::int32_t> adjoint(program_.nodes.size(), kNone);
    std::int32_t of_score = kNone;
    adjoint[static_cast<std::size_t>(program_.result)] = table_.real(1.0);
    for (std::size_t n = program_.nodes.size(); n-- > 0;) {
      if (adjoint[n] == kNone || !differs_[n]) continue;
      const Node& node = program_.nodes[n];
      if (node.op == Op::score) of_score = adjoint[n];
      if (node.op == Op::load) add_term(node, adjoint[n], 1);
      if (node.op == Op::sum) {
        through_lanes(node, adjoint[n], adjoint);
      } else {
        through(static_cast<std::int32_t>(n), adjoint[n], [&](std::int32_t arg, std::int32_t g) {
          accumulate(adjoint[static_cast<std::size_t>(arg)], g);
        });
      }
    }
    return finish(of_score == kNone ? table_.real(0.0) : of_score);
  }

 private:
  /// Whether the score or a captured real moves the value.
  bool differs(const Node& node) const {
    if (node.type != Type::real) return false;
    if (node.op == Op::score || node.op == Op::load) return true;
    for (int n = 0; n < node.count; ++n) {
      if (differs_[static_cast<std::size_t>(node.args[static_cast<std::size_t>(n)])]) return true;
    }
    return false;
  }
  bool differs(std::int32_t node) const { return differs_[static_cast<std::size_t>(node)]; }

  void accumulate(std::int32_t& sum, std::int32_t g) {
    sum = sum == kNone ? g : table_.make(Op::add, {sum, g});
  }

  void add_term(const Node& load, std::int32_t value, std::int32_t lanes) {
    terms_.push_back({.capture = load.capture, .index = load.args, .value = value, .lanes = lanes});
  }

  /// The body's nodes that a lane changes, backwards, and the sum over the lanes of what reaches
  /// the others. Another reduction may share nodes with this one, but not their adjoints.
  void through_lanes(const Node& sum, std::int32_t g, std::vector<std::int32_t>& adjoint) {
    const auto lanes = static_cast<std::int32_t>(sum.integer);
    std::vector<std::int32_t> inside(program_.nodes.size(), kNone);
    inside[static_cast<std::size_t>(sum.args[0])] = g;
    for (std::size_t n = static_cast<std::size_t>(sum.args[0]) + 1; n-- > 0;) {
      if (inside[n] == kNone || !differs_[n]) continue;
      const Node& node = program_.nodes[n];
      if ((node.depends & kLane) == 0) {
        accumulate(adjoint[n], table_.reduce(Op::sum, lanes, inside[n]));
        continue;
      }
      if (node.op == Op::load) add_term(node, inside[n], lanes);
      through(static_cast<std::int32_t>(n), inside[n], [&](std::int32_t arg, std::int32_t part) {
        accumulate(inside[static_cast<std::size_t>(arg)], part);
      });
    }
  }

  std::int32_t times(std::int32_t a, std::int32_t b) { return table_.make(Op::multiply, {a, b}); }
  std::int32_t times(double a, std::int32_t b) { return times(table_.real(a), b); }
  std::int32_t plus(double a, std::int32_t b) { return table_.make(Op::add, {table_.real(a), b}); }
  std::int32_t minus(std::int32_t x) { return table_.make(Op::negate, {x}); }
  std::int32_t one_minus(std::int32_t x) {
    return table_.make(Op::subtract, {table_.real(1.0), x});
  }
  std::int32_t choose(std::int32_t condition, std::int32_t a, std::int32_t b) {
    return table_.make(Op::where, {condition, a, b});
  }
  std::int32_t zero() { return table_.real(0.0); }

  /// f(g), a product or a quotient of g, with a `where` of g kept outside: what it does not take is
  /// 0 and never 0 times infinity.
  template <class F>
  std::int32_t guarded(std::int32_t g, F f) {
    const Node node = table_[g];
    if (node.op == Op::where && node.args[2] == zero()) {
      return choose(node.args[0], guarded(node.args[1], f), zero());
    }
    if (node.op == Op::where && node.args[1] == zero()) {
      return choose(node.args[0], zero(), guarded(node.args[2], f));
    }
    return f(g);
  }
  std::int32_t scaled(std::int32_t g, std::int32_t by) {
    return guarded(g, [&](std::int32_t part) { return times(part, by); });
  }
  std::int32_t over(std::int32_t g, std::int32_t by) {
    return guarded(g, [&](std::int32_t part) { return table_.make(Op::divide, {part, by}); });
  }
  std::int32_t negated(std::int32_t g) {
    return guarded(g, [&](std::int32_t part) { return minus(part); });
  }

  /// Calls add(argument, its part) for each argument that differs of `node`, whose adjoint is g.
  template <class F>
  void through(std::int32_t n, std::int32_t g, F add) {
    const Node& node = program_.nodes[static_cast<std::size_t>(n)];
    if (node.count == 0 || node.op == Op::load) return;
    const std::int32_t a = node.args[0];
    if (node.count == 1) {
      if (const std::int32_t part = through_function(node.op, a, n, g); part != kNone) {
        add(a, part);
      }
      return;
    }
    const std::int32_t b = node.args[1];
    if (node.op == Op::where) {
      const std::int32_t c = node.args[2];
      if (differs(b)) add(b, choose(a, g, zero()));
      if (differs(c)) add(c, choose(a, zero(), g));
      return;
    }
    if (differs(a)) {
      if (const std::int32_t part = through_left(node.op, a, b, g); part != kNone) add(a, part);
    }
    if (differs(b)) {
      if (const std::int32_t part = through_right(node.op, a, b, n, g); part != kNone) {
        add(b, part);
      }
    }
  }

  std::int32_t through_function(Op op, std::int32_t x, std::int32_t y, std::int32_t g) {
    switch (op) {
      case Op::negate:
        return negated(g);
      case Op::absolute:
        return scaled(g, table_.make(Op::sign, {x}));
      case Op::exp:
        return scaled(g, y);
      case Op::exp2:
        return scaled(g, times(kLn2, y));
      case Op::log:
        return over(g, x);
      case Op::sqrt:
        return over(scaled(g, table_.real(0.5)), y);
      case Op::rsqrt:
        return scaled(g, times(-0.5, times(y, times(y, y))));
      case Op::tanh:
        return scaled(g, one_minus(times(y, y)));
      case Op::sigmoid:
        return scaled(g, times(y, one_minus(y)));
      case Op::sin:
        return scaled(g, table_.make(Op::cos, {x}));
      case Op::cos:
        return scaled(g, minus(table_.make(Op::sin, {x})));
      case Op::atan:
        return over(g, plus(1.0, times(x, x)));
      case Op::erf:
        return scaled(g, times(kTwoOverSqrtPi, table_.make(Op::exp, {minus(times(x, x))})));
      case Op::relu:
        return choose(table_.make(Op::less, {zero(), x}), g, zero());
      case Op::silu: {
        const std::int32_t s = table_.make(Op::sigmoid, {x});
        return scaled(g, times(s, plus(1.0, times(x, one_minus(s)))));
      }
      case Op::gelu: {
        const std::int32_t below = plus(1.0, table_.make(Op::erf, {times(kSqrtHalf, x)}));
        const std::int32_t bell = table_.make(Op::exp, {times(-0.5, times(x, x))});
        const std::int32_t density = times(kOneOverSqrt2Pi, times(x, bell));
        return scaled(g, table_.make(Op::add, {times(0.5, below), density}));
      }
      default:
        return kNone;
    }
  }

  std::int32_t through_left(Op op, std::int32_t a, std::int32_t b, std::int32_t g) {
    switch (op) {
      case Op::add:
      case Op::subtract:
      case Op::modulo:
        return g;
      case Op::multiply:
        return scaled(g, b);
      case Op::divide:
        return over(g, b);
      case Op::minimum:
        return extreme(a, b, b, g);
      case Op::maximum:
        return extreme(b, a, b, g);
      case Op::power: {
        const std::int32_t less = table_.make(Op::subtract, {b, table_.real(1.0)});
        const std::int32_t part = scaled(g, times(b, table_.make(Op::power, {a, less})));
        return choose(table_.make(Op::equal, {b, zero()}), zero(), part);
      }
      default:
        return kNone;
    }
  }

  std::int32_t through_right(Op op, std::int32_t a, std::int32_t b, std::int32_t y,
                             std::int32_t g) {
    switch (op) {
      case Op::add:
        return g;
      case Op::subtract:
        return negated(g);
      case Op::modulo:
        return scaled(g, minus(table_.make(Op::floor_divide, {a, b})));
      case Op::multiply:
        return scaled(g, a);
      case Op::divide:
        return negated(over(scaled(g, y), b));
      case Op::minimum:
        return extreme(b, a, a, g);
      case Op::maximum:
        return extreme(a, b, a, g);
      case Op::power: {
        const std::int32_t none = table_.make(
            Op::logical_and,
            {table_.make(Op::equal, {a, zero()}), table_.make(Op::less_equal, {zero(), b})});
        return choose(none, zero(), scaled(g, times(y, table_.make(Op::log, {a}))));
      }
      default:
        return kNone;
    }
  }

  /// The part of the operand that is taken where low < high. Against an operand without a gradient
  /// it has all of g at equality, as clamp has.
  std::int32_t extreme(std::int32_t low, std::int32_t high, std::int32_t other, std::int32_t g) {
    if (!differs(other)) return choose(table_.make(Op::less_equal, {low, high}), g, zero());
    const std::int32_t shared =
        choose(table_.make(Op::equal, {low, high}), scaled(g, table_.real(0.5)), zero());
    return choose(table_.make(Op::less, {low, high}), g, shared);
  }

  Gradient finish(std::int32_t of_score) {
    Gradient gradient;
    gradient.of_score = of_score;
    gradient.terms = terms_;
    std::int32_t result = program_.result;
    std::vector<std::int32_t*> roots{&result, &gradient.of_score};
    for (CaptureTerm& term : gradient.terms) {
      roots.push_back(&term.value);
      const auto axes =
          static_cast<std::size_t>(program_.captures[static_cast<std::size_t>(term.capture)].rank);
      for (std::size_t axis = 0; axis < axes; ++axis) roots.push_back(&term.index[axis]);
    }
    gradient.program = table_.finish(roots);
    gradient.program.result = result;
    for (const CaptureTerm& term : gradient.terms) {
      gradient.program.text +=
          'c' + std::to_string(term.capture) + 'x' + std::to_string(term.lanes) + ' ';
    }
    return gradient;
  }

  const Program& program_;
  NodeTable table_;
  std::vector<bool> differs_;
  std::vector<CaptureTerm> terms_;
};

}  // namespace

Gradient derive(const Program& program) { return Derivation(program).run(); }

}  // namespace tilewise::expression
