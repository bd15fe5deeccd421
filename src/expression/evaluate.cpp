#include "expression/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tilewise::expression {
namespace {

constexpr double kSqrtHalf = 0.70710678118654752440;

/// As Python's: the remainder has the divisor's sign.
double floor_remainder(double a, double b) {
  const double r = std::fmod(a, b);
  return r != 0.0 && (r < 0.0) != (b < 0.0) ? r + b : r;
}

double extreme(double a, double b, bool highest) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return highest ? std::max(a, b) : std::min(a, b);
}

double real_function(Op op, double x) {
  switch (op) {
    case Op::negate:
      return -x;
    case Op::absolute:
      return std::fabs(x);
    case Op::exp:
      return std::exp(x);
    case Op::exp2:
      return std::exp2(x);
    case Op::log:
      return std::log(x);
    case Op::sqrt:
      return std::sqrt(x);
    case Op::rsqrt:
      return 1.0 / std::sqrt(x);
    case Op::tanh:
      return std::tanh(x);
    case Op::sigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case Op::sin:
      return std::sin(x);
    case Op::cos:
      return std::cos(x);
    case Op::atan:
      return std::atan(x);
    case Op::erf:
      return std::erf(x);
    case Op::relu:
      return x <= 0.0 ? 0.0 : x;
    case Op::silu:
      return x / (1.0 + std::exp(-x));
    case Op::gelu:
      return 0.5 * x * (1.0 + std::erf(x * kSqrtHalf));
    case Op::floor:
      return std::floor(x);
    case Op::ceil:
      return std::ceil(x);
    case Op::round:
      return std::nearbyint(x);
    default:  // sign
      return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : x;
  }
}

double real_pair(Op op, double a, double b) {
  switch (op) {
    case Op::add:
      return a + b;
    case Op::subtract:
      return a - b;
    case Op::multiply:
      return a * b;
    case Op::divide:
      return a / b;
    case Op::floor_divide:
      return std::floor(a / b);
    case Op::modulo:
      return floor_remainder(a, b);
    case Op::minimum:
      return extreme(a, b, false);
    case Op::maximum:
      return extreme(a, b, true);
    default:
      return std::pow(a, b);
  }
}

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
  if (b == 0) return 0;
  const std::int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

std::int64_t integer_pair(Op op, std::int64_t a, std::int64_t b) {
  const auto shift = static_cast<unsigned>(b & 31);
  switch (op) {
    case Op::add:
      return a + b;
    case Op::subtract:
      return a - b;
    case Op::multiply:
      return a * b;
    case Op::floor_divide:
      return floor_quotient(a, b);
    case Op::modulo:
      return a - floor_quotient(a, b) * b;
    case Op::minimum:
      return std::min(a, b);
    case Op::maximum:
      return std::max(a, b);
    case Op::bit_and:
    case Op::logical_and:
      return a & b;
    case Op::bit_or:
    case Op::logical_or:
      return a | b;
    case Op::bit_xor:
    case Op::logical_xor:
      return a ^ b;
    case Op::shift_left:
      return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) << shift);
    default:
      return a >> shift;
  }
}

template <class T>
bool compare(Op op, T a, T b) {
  switch (op) {
    case Op::equal:
      return a == b;
    case Op::not_equal:
      return a != b;
    case Op::less:
      return a < b;
    default:
      return a <= b;
  }
}

std::int64_t truncated(double x) {
  constexpr double kLow = std::numeric_limits<std::int32_t>::min();
  constexpr double kHigh = std::numeric_limits<std::int32_t>::max();
  return std::isnan(x) ? 0 : static_cast<std::int64_t>(std::clamp(x, kLow, kHigh));
}

}  // namespace

std::int64_t wrap32(std::int64_t value) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(static_cast<std::uint64_t>(value)));
}

Value fold(Op op, Type operands, std::span<const Value> args) {
  const bool real = operands == Type::real;
  switch (op) {
    case Op::where:
      return args[0].integer != 0 ? args[1] : args[2];
    case Op::to_real:
      return {.real = static_cast<double>(args[0].integer)};
    case Op::to_integer:
      return {.integer = real ? truncated(args[0].real) : args[0].integer};
    case Op::to_boolean:
      return {.integer = (real ? args[0].real != 0.0 : args[0].integer != 0) ? 1 : 0};
    case Op::logical_not:
      return {.integer = args[0].integer ^ 1};
    case Op::bit_not:
      return {.integer = ~args[0].integer};
    case Op::equal:
    case Op::not_equal:
    case Op::less:
    case Op::less_equal: {
      const bool holds = real ? compare(op, args[0].real, args[1].real)
                              : compare(op, args[0].integer, args[1].integer);
      return {.integer = holds ? 1 : 0};
    }
    default:
      break;
  }
  if (real) {
    return {.real = args.size() == 1 ? real_function(op, args[0].real)
                                     : real_pair(op, args[0].real, args[1].real)};
  }
  if (args.size() == 1) {
    const std::int64_t x = args[0].integer;
    return {.integer = op == Op::negate || x < 0 ? -x : x};
  }
  return {.integer = integer_pair(op, args[0].integer, args[1].integer)};
}

Value apply(Op op, Type operands, std::span<const Value> args) {
  Value value = fold(op, operands, args);
  value.integer = wrap32(value.integer);
  return value;
}

}  // namespace tilewise::expression
