#include "tilewise/expression.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <string>
#include <utility>

#include "expression/nodes.h"
#include "expression/term.h"
#include "expression/text.h"

namespace tilewise {
namespace expression {
namespace {

[[noreturn]] void fail(const std::string& what) { throw InvalidArgument("expression: " + what); }

/// The type that both operands are brought to.
Type common(const Expression& a, const Expression& b) { return std::max(type_of(a), type_of(b)); }

Expression number_of(Op op, const Expression& a, const Expression& b) {
  const Type type = std::max(common(a, b), Type::integer);
  return make_term(op, type, std::array{as_type(a, type), as_type(b, type)});
}

Expression real_of(Op op, const Expression& x) {
  return make_term(op, Type::real, std::array{as_real(x)});
}

Expression real_of(Op op, const Expression& a, const Expression& b) {
  return make_term(op, Type::real, std::array{as_real(a), as_real(b)});
}

Expression compared(Op op, const Expression& a, const Expression& b) {
  const Type type = std::max(common(a, b), Type::integer);
  return make_term(op, Type::boolean, std::array{as_type(a, type), as_type(b, type)});
}

/// Logical on two booleans, by bits on integers.
Expression bits_of(Op logical, Op bits, const Expression& a, const Expression& b) {
  const Type type = common(a, b);
  if (type == Type::real) {
    fail(std::string(op_name(bits)) + " takes booleans or integers, not a real");
  }
  return make_term(type == Type::boolean ? logical : bits, type,
                   std::array{as_type(a, type), as_type(b, type)});
}

void require_integer(const Expression& x, std::string_view where) {
  if (type_of(x) == Type::real) fail(std::string(where) + " takes integers, not a real");
}

void require_boolean(const Expression& x, std::string_view where) {
  if (type_of(x) != Type::boolean) {
    fail(std::string(where) + " takes booleans, not " +
         (type_of(x) == Type::integer ? "an integer" : "a real"));
  }
}

Expression shifted(Op op, const Expression& a, const Expression& b) {
  require_integer(a, op_name(op));
  require_integer(b, op_name(op));
  return make_term(op, Type::integer, std::array{as_number(a), as_number(b)});
}

Expression logical(Op op, const char* name, const Expression& a, const Expression& b) {
  require_boolean(a, name);
  require_boolean(b, name);
  return make_term(op, Type::boolean, std::array{a, b});
}

/// Rounds a real. An integer stays as it is.
Expression rounded(Op op, const Expression& x) {
  return type_of(x) == Type::real ? real_of(op, x) : as_number(x);
}

Expression leaf(Op op, Type type) {
  auto term = std::make_shared<Term>();
  term->op = op;
  term->type = type;
  term->lanes = op == Op::lane;
  return Expression(std::move(term));
}

/// x to the power of n >= 0 by squaring.
Expression multiplied(const Expression& x, std::int64_t n) {
  if (n == 0) return type_of(x) == Type::real ? Expression(1.0) : Expression(1);
  Expression result;
  for (Expression square = x; n > 0; n >>= 1) {
    if ((n & 1) != 0) result = result.defined() ? result * square : square;
    if (n > 1) square = square * square;
  }
  return result;
}

Expression reduced(Op op, Type type, std::int64_t count, const Expression& body) {
  if (count < 1 || count > kMaxLanes) {
    fail(std::string(op_name(op)) + " runs over 1 to " + std::to_string(kMaxLanes) +
         " lanes, not " + std::to_string(count));
  }
  if (term_of(body).reduces) {
    fail(std::string(op_name(op)) + " cannot hold another any, all or sum");
  }
  Expression made = make_term(op, type, std::array{body});
  auto term = std::const_pointer_cast<Term>(made.term());
  term->integer = count;
  term->lanes = false;
  term->reduces = true;
  return made;
}

}  // namespace

const Term& term_of(const Expression& x) {
  if (!x.defined()) fail("an operand is missing");
  return *x.term();
}

Type type_of(const Expression& x) { return term_of(x).type; }

Expression make_term(Op op, Type type, std::span<const Expression> args) {
  auto term = std::make_shared<Term>();
  term->op = op;
  term->type = type;
  term->count = static_cast<int>(args.size());
  std::copy(args.begin(), args.end(), term->args.begin());
  for (const Expression& arg : args) {
    const Term& below = term_of(arg);
    term->depth = std::max(term->depth, below.depth + 1);
    term->lanes = term->lanes || below.lanes;
    term->reduces = term->reduces || below.reduces;
  }
  if (term->depth > kMaxDepth) {
    fail("operations are nested more than " + std::to_string(kMaxDepth) + " deep");
  }
  return Expression(std::move(term));
}

Expression as_type(const Expression& x, Type type) {
  const Term& term = term_of(x);
  if (term.type == type) return x;
  if (term.op == Op::constant) {
    const double value = term.type == Type::real ? term.real : static_cast<double>(term.integer);
    switch (type) {
      case Type::boolean:
        return Expression(value != 0.0);
      case Type::integer:
        if (term.type == Type::boolean) return Expression(term.integer);
        break;  // of a real: folded later, where values out of range are judged
      case Type::real:
        return Expression(value);
    }
  }
  static constexpr std::array kCasts{Op::to_boolean, Op::to_integer, Op::to_real};
  return make_term(kCasts[static_cast<std::size_t>(type)], type, std::array{x});
}

Expression as_number(const Expression& x) {
  return as_type(x, std::max(type_of(x), Type::integer));
}
Expression as_real(const Expression& x) { return as_type(x, Type::real); }

Expression score() { return leaf(Op::score, Type::real); }
Expression batch() { return leaf(Op::batch, Type::integer); }
Expression head() { return leaf(Op::head, Type::integer); }
Expression query() { return leaf(Op::query, Type::integer); }
Expression key() { return leaf(Op::key, Type::integer); }
Expression query_length() { return leaf(Op::query_length, Type::integer); }
Expression key_length() { return leaf(Op::key_length, Type::integer); }
Expression lane() { return leaf(Op::lane, Type::integer); }

Expression abs(const Expression& x) {
  const Expression number = as_number(x);
  return make_term(Op::absolute, type_of(number), std::array{number});
}
Expression min(const Expression& a, const Expression& b) { return number_of(Op::minimum, a, b); }
Expression max(const Expression& a, const Expression& b) { return number_of(Op::maximum, a, b); }
Expression clamp(const Expression& x, const Expression& low, const Expression& high) {
  return min(max(x, low), high);
}
Expression pow(const Expression& x, const Expression& exponent) {
  const Term& power = term_of(exponent);
  const bool constant = power.op == Op::constant && power.type != Type::real;
  if (type_of(x) != Type::real && type_of(exponent) != Type::real) {
    if (!constant || power.integer < 0 || power.integer > 64) {
      fail(
          "pow of integers needs a constant exponent from 0 to 64; use float() for other "
          "exponents");
    }
    return multiplied(as_number(x), power.integer);
  }
  if (constant && power.integer >= 0 && power.integer <= 4) return multiplied(x, power.integer);
  if (power.op == Op::constant && power.type == Type::real && power.real == 2.0) return x * x;
  return real_of(Op::power, x, exponent);
}
Expression floor_divide(const Expression& a, const Expression& b) {
  return number_of(Op::floor_divide, a, b);
}
Expression exp(const Expression& x) { return real_of(Op::exp, x); }
Expression exp2(const Expression& x) { return real_of(Op::exp2, x); }
Expression log(const Expression& x) { return real_of(Op::log, x); }
Expression sqrt(const Expression& x) { return real_of(Op::sqrt, x); }
Expression rsqrt(const Expression& x) { return real_of(Op::rsqrt, x); }
Expression tanh(const Expression& x) { return real_of(Op::tanh, x); }
Expression sigmoid(const Expression& x) { return real_of(Op::sigmoid, x); }
Expression sin(const Expression& x) { return real_of(Op::sin, x); }
Expression cos(const Expression& x) { return real_of(Op::cos, x); }
Expression atan(const Expression& x) { return real_of(Op::atan, x); }
Expression erf(const Expression& x) { return real_of(Op::erf, x); }
Expression relu(const Expression& x) {
  return type_of(x) == Type::real ? real_of(Op::relu, x) : max(x, 0);
}
Expression silu(const Expression& x) { return real_of(Op::silu, x); }
Expression gelu(const Expression& x) { return real_of(Op::gelu, x); }
Expression floor(const Expression& x) { return rounded(Op::floor, x); }
Expression ceil(const Expression& x) { return rounded(Op::ceil, x); }
Expression round(const Expression& x) { return rounded(Op::round, x); }
Expression sign(const Expression& x) {
  return type_of(x) == Type::real ? real_of(Op::sign, x) : clamp(x, -1, 1);
}
Expression where(const Expression& condition, const Expression& a, const Expression& b) {
  require_boolean(condition, "the condition of where");
  const Type type = common(a, b);
  return make_term(Op::where, type, std::array{condition, as_type(a, type), as_type(b, type)});
}
Expression to_integer(const Expression& x) { return as_type(x, Type::integer); }
Expression to_real(const Expression& x) { return as_real(x); }
Expression to_boolean(const Expression& x) { return as_type(x, Type::boolean); }

Expression any(std::int64_t count, const Expression& body) {
  require_boolean(body, "any");
  return reduced(Op::any, Type::boolean, count, body);
}
Expression all(std::int64_t count, const Expression& body) {
  require_boolean(body, "all");
  return reduced(Op::all, Type::boolean, count, body);
}
Expression sum(std::int64_t count, const Expression& body) {
  const Expression number = as_number(body);
  return reduced(Op::sum, type_of(number), count, number);
}

}  // namespace expression

namespace {

using expression::Op;
using expression::Type;

}  // namespace

Expression Expression::constant(bool value) {
  auto term = std::make_shared<expression::Term>();
  term->type = Type::boolean;
  term->integer = value ? 1 : 0;
  return Expression(std::move(term));
}

Expression Expression::constant(std::int64_t value) {
  auto term = std::make_shared<expression::Term>();
  term->type = Type::integer;
  term->integer = value;
  return Expression(std::move(term));
}

Expression Expression::constant(std::uint64_t value) {
  if (!std::in_range<std::int64_t>(value)) expression::fail_32_bits(std::to_string(value));
  return constant(static_cast<std::int64_t>(value));
}

Expression Expression::constant(double value) {
  auto term = std::make_shared<expression::Term>();
  term->type = Type::real;
  term->real = value;
  return Expression(std::move(term));
}

std::vector<Captured> Expression::captures() const {
  return defined() ? expression::lower(*this).captures() : std::vector<Captured>{};
}

Captured::Captured(std::string name, const Tensor& tensor)
    : data_(std::make_shared<const Data>(Data{std::move(name), tensor})) {
  if (!expression::is_capture_name(data_->name)) {
    throw InvalidArgument("captured tensor \"" + data_->name +
                          "\": its name must be a letter, then letters, digits and underscores, "
                          "and not a word of the language");
  }
  const auto fail = [&](const char* expected) {
    throw InvalidArgument("captured tensor " + data_->name + " is " + tensor.describe() + ": " +
                          expected);
  };
  if (tensor.rank < 1 || tensor.rank > Tensor::kMaxRank) fail("its rank must be 1 to 4");
  if (std::any_of(tensor.sizes.begin(), tensor.sizes.end(), [](auto n) { return n < 0; })) {
    fail("its sizes must be >= 0");
  }
}

Expression Captured::at(std::span<const Expression> indices) const {
  const Tensor& t = tensor();
  if (static_cast<int>(indices.size()) != t.rank) {
    throw InvalidArgument("expression: " + name() + " is " + t.describe() + " and takes " +
                          std::to_string(t.rank) + " indices, not " +
                          std::to_string(indices.size()));
  }
  std::array<Expression, 4> args;
  for (std::size_t n = 0; n < indices.size(); ++n) {
    if (expression::type_of(indices[n]) == Type::real) {
      throw InvalidArgument("expression: an index of " + name() + " is a real; use int()");
    }
    args[n] = expression::as_number(indices[n]);
  }
  const Type type = is_floating(t.dtype)        ? Type::real
                    : t.dtype == DType::boolean ? Type::boolean
                                                : Type::integer;
  Expression made = expression::make_term(Op::load, type, std::span(args).first(indices.size()));
  std::const_pointer_cast<expression::Term>(made.term())->capture = data_;
  return made;
}

Expression Captured::operator()(const Expression& a) const { return at(std::array{a}); }
Expression Captured::operator()(const Expression& a, const Expression& b) const {
  return at(std::array{a, b});
}
Expression Captured::operator()(const Expression& a, const Expression& b,
                                const Expression& c) const {
  return at(std::array{a, b, c});
}
Expression Captured::operator()(const Expression& a, const Expression& b, const Expression& c,
                                const Expression& d) const {
  return at(std::array{a, b, c, d});
}

Expression Captured::operator()() const {
  if (tensor().rank != 1 || tensor().sizes[0] != 1) {
    throw InvalidArgument("expression: " + name() + " is " + tensor().describe() + " and takes " +
                          std::to_string(tensor().rank) + " indices, not 0");
  }
  return at(std::array{Expression(0)});
}

const std::string& Captured::name() const { return data_->name; }
const Tensor& Captured::tensor() const { return data_->tensor; }

Expression operator+(const Expression& a, const Expression& b) {
  return expression::number_of(Op::add, a, b);
}
Expression operator-(const Expression& a, const Expression& b) {
  return expression::number_of(Op::subtract, a, b);
}
Expression operator*(const Expression& a, const Expression& b) {
  return expression::number_of(Op::multiply, a, b);
}
Expression operator/(const Expression& a, const Expression& b) {
  return expression::real_of(Op::divide, a, b);
}
Expression operator%(const Expression& a, const Expression& b) {
  return expression::number_of(Op::modulo, a, b);
}
Expression operator-(const Expression& x) {
  const Expression number = expression::as_number(x);
  return expression::make_term(Op::negate, expression::type_of(number), std::array{number});
}
Expression operator<(const Expression& a, const Expression& b) {
  return expression::compared(Op::less, a, b);
}
Expression operator<=(const Expression& a, const Expression& b) {
  return expression::compared(Op::less_equal, a, b);
}
Expression operator>(const Expression& a, const Expression& b) { return b < a; }
Expression operator>=(const Expression& a, const Expression& b) { return b <= a; }
Expression operator==(const Expression& a, const Expression& b) {
  return expression::compared(Op::equal, a, b);
}
Expression operator!=(const Expression& a, const Expression& b) {
  return expression::compared(Op::not_equal, a, b);
}
Expression operator&(const Expression& a, const Expression& b) {
  return expression::bits_of(Op::logical_and, Op::bit_and, a, b);
}
Expression operator|(const Expression& a, const Expression& b) {
  return expression::bits_of(Op::logical_or, Op::bit_or, a, b);
}
Expression operator^(const Expression& a, const Expression& b) {
  return expression::bits_of(Op::logical_xor, Op::bit_xor, a, b);
}
Expression operator~(const Expression& x) {
  const Type type = expression::type_of(x);
  if (type == Type::real) expression::fail("~ takes a boolean or an integer, not a real");
  return expression::make_term(type == Type::boolean ? Op::logical_not : Op::bit_not, type,
                               std::array{x});
}
Expression operator<<(const Expression& a, const Expression& b) {
  return expression::shifted(Op::shift_left, a, b);
}
Expression operator>>(const Expression& a, const Expression& b) {
  return expression::shifted(Op::shift_right, a, b);
}
Expression operator&&(const Expression& a, const Expression& b) {
  return expression::logical(Op::logical_and, "and", a, b);
}
Expression operator||(const Expression& a, const Expression& b) {
  return expression::logical(Op::logical_or, "or", a, b);
}
Expression operator!(const Expression& x) {
  expression::require_boolean(x, "not");
  return expression::make_term(Op::logical_not, Type::boolean, std::array{x});
}

}  // namespace tilewise
