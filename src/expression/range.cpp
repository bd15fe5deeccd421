#include "expression/range.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tilewise::expression {
namespace {

constexpr std::int64_t kLowest = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kHighest = std::numeric_limits<std::int32_t>::max();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// More than a float32 operation rounds, and more than a float32 function is off.
constexpr double kRounding = 0x1p-22, kFunction = 0x1p-16;

/// Bits that low and high have in common from the top on are those of everything between them.
std::uint32_t common_prefix(std::int64_t low, std::int64_t high) {
  const auto differs = static_cast<std::uint32_t>(low) ^ static_cast<std::uint32_t>(high);
  const int prefix = std::countl_zero(differs);
  return prefix == 0 ? 0U : prefix == 32 ? ~0U : ~(~0U >> prefix);
}

/// Bounds and bits, each narrowed by the other. Bounds past 32 bits: the value has wrapped.
Range narrowed(std::int64_t low, std::int64_t high, std::uint32_t known, std::uint32_t bits) {
  if (low < kLowest || high > kHighest) {
    low = kLowest;
    high = kHighest;
  }
  if ((known >> 31) != 0) {  // the sign is known: the smallest and the largest with these bits
    low = std::max<std::int64_t>(low, static_cast<std::int32_t>(bits));
    high = std::min<std::int64_t>(high, static_cast<std::int32_t>(bits | ~known));
  }
  const std::uint32_t prefix = common_prefix(low, high);
  known |= prefix;
  bits = (bits & ~prefix) | (static_cast<std::uint32_t>(low) & prefix);
  Range range;
  range.low = low;
  range.high = high;
  range.known = known;
  range.bits = bits;
  return range;
}

/// How many of the lowest bits are known.
int known_below(const Range& x) { return std::countr_one(x.known); }
std::uint32_t lowest_bits(int count) { return count >= 32 ? ~0U : (1U << count) - 1U; }

/// For sums, differences and products: the lowest bits depend only on the lowest bits.
Range with_low_bits(std::int64_t low, std::int64_t high, const Range& a, const Range& b,
                    std::uint32_t result) {
  const std::uint32_t known = lowest_bits(std::min(known_below(a), known_below(b)));
  return narrowed(low, high, known, result & known);
}

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

/// The range of f(a, b), which is monotone in each.
template <class F>
Range of_corners(const Range& a, const Range& b, const F& f) {
  const std::int64_t corners[] = {f(a.low, b.low), f(a.low, b.high), f(a.high, b.low),
                                  f(a.high, b.high)};
  const auto [low, high] = std::minmax_element(std::begin(corners), std::end(corners));
  return narrowed(*low, *high, 0, 0);
}

std::int64_t magnitude(const Range& x) { return std::max(std::abs(x.low), std::abs(x.high)); }

Range shift_right(const Range& a, int count) {
  const bool sign = (a.known >> 31) != 0;
  const auto known = static_cast<std::uint32_t>(sign ? static_cast<std::int32_t>(a.known) >> count
                                                     : static_cast<std::int32_t>(a.known >> count));
  const auto bits = static_cast<std::uint32_t>(static_cast<std::int32_t>(a.bits) >> count);
  return narrowed(a.low >> count, a.high >> count, known, bits & known);
}

Range quotient(const Range& a, const Range& b) {
  if (b.single() && b.low > 0 && std::has_single_bit(static_cast<std::uint64_t>(b.low))) {
    return shift_right(a, std::countr_zero(static_cast<std::uint64_t>(b.low)));
  }
  if (b.low > 0 || b.high < 0) return of_corners(a, b, floor_quotient);
  return integers(-magnitude(a), magnitude(a));
}

Range remainder(const Range& a, const Range& b) {
  if (b.low <= 0 && b.high >= 0) {  // of 0 it is a
    return integers(std::min({a.low, b.low, std::int64_t{0}}),
                    std::max({a.high, b.high, std::int64_t{0}}));
  }
  if (b.single()) {
    const std::int64_t whole = floor_quotient(a.low, b.low);
    if (whole == floor_quotient(a.high, b.low)) {
      return integers(a.low - whole * b.low, a.high - whole * b.low);
    }
  } else if (a.low >= 0 && a.high < b.low) {
    return a;
  }
  const auto below = static_cast<std::uint32_t>(b.high - 1);
  const bool power = b.single() && b.low > 0 && (static_cast<std::uint32_t>(b.low) & below) == 0;
  const std::uint32_t known = power ? (a.known & below) | ~below : 0;
  return b.low > 0 ? narrowed(0, b.high - 1, known, a.bits & known & below)
                   : integers(b.low + 1, 0);
}

Range shifted_left(const Range& a, const Range& b) {
  if (!b.single()) return anything(Type::integer);
  const auto count = static_cast<int>(b.low & 31);
  const std::uint32_t known = (a.known << count) | lowest_bits(count);
  return narrowed(a.low << count, a.high << count, known, a.bits << count);
}

Range shifted_right(const Range& a, const Range& b) {
  if (b.single()) return shift_right(a, static_cast<int>(b.low & 31));
  if (b.low < 0 || b.high > 31) {
    return integers(std::min<std::int64_t>(a.low, -1), std::max<std::int64_t>(a.high, 0));
  }
  return of_corners(a, b, [](std::int64_t x, std::int64_t count) { return x >> count; });
}

Range bits_and(const Range& a, const Range& b) {
  const std::uint32_t ones = a.bits & b.bits;
  const std::uint32_t zeros = (a.known & ~a.bits) | (b.known & ~b.bits);
  std::int64_t low = kLowest;
  std::int64_t high = kHighest;
  if (a.low >= 0 || b.low >= 0) {
    low = 0;
    high = std::min(a.low >= 0 ? a.high : kHighest, b.low >= 0 ? b.high : kHighest);
  }
  return narrowed(low, high, ones | zeros, ones);
}

Range bits_not(const Range& a) {
  return narrowed(-1 - a.high, -1 - a.low, a.known, ~a.bits & a.known);
}

Range bits_or(const Range& a, const Range& b) {
  return bits_not(bits_and(bits_not(a), bits_not(b)));
}

Range bits_xor(const Range& a, const Range& b) {
  const std::uint32_t known = a.known & b.known;
  return narrowed(kLowest, kHighest, known, (a.bits ^ b.bits) & known);
}

Range integer_pair(Op op, const Range& a, const Range& b) {
  switch (op) {
    case Op::add:
      return with_low_bits(a.low + b.low, a.high + b.high, a, b, a.bits + b.bits);
    case Op::subtract:
      return with_low_bits(a.low - b.high, a.high - b.low, a, b, a.bits - b.bits);
    case Op::multiply: {
      const Range bounds = of_corners(a, b, [](std::int64_t x, std::int64_t y) { return x * y; });
      return with_low_bits(bounds.low, bounds.high, a, b, a.bits * b.bits);
    }
    case Op::floor_divide:
      return quotient(a, b);
    case Op::modulo:
      return remainder(a, b);
    case Op::minimum:
      return integers(std::min(a.low, b.low), std::min(a.high, b.high));
    case Op::maximum:
      return integers(std::max(a.low, b.low), std::max(a.high, b.high));
    case Op::bit_and:
    case Op::logical_and:
      return bits_and(a, b);
    case Op::bit_or:
    case Op::logical_or:
      return bits_or(a, b);
    case Op::bit_xor:
    case Op::logical_xor:
      return bits_xor(a, b);
    case Op::shift_left:
      return shifted_left(a, b);
    case Op::shift_right:
      return shifted_right(a, b);
    default:
      return anything(Type::integer);
  }
}

Range integer_function(Op op, const Range& x) {
  if (op == Op::negate) return integers(-x.high, -x.low);
  if (op == Op::bit_not) return bits_not(x);
  if (op == Op::absolute) {
    if (x.low >= 0) return x;
    return integers(x.high <= 0 ? -x.high : 0, magnitude(x));
  }
  return anything(Type::integer);
}

Range compared_integers(Op op, const Range& a, const Range& b) {
  if (op == Op::less) return boolean(a.high >= b.low, a.low < b.high);
  if (op == Op::less_equal) return boolean(a.high > b.low, a.low <= b.high);
  const std::uint32_t both = a.known & b.known;
  const bool apart = a.high < b.low || b.high < a.low || ((a.bits ^ b.bits) & both) != 0;
  const bool same = a.single() && b.single() && a.low == b.low;
  return op == Op::equal ? boolean(!same, !apart) : boolean(!apart, !same);
}

Range compared_reals(Op op, const Range& a, const Range& b) {
  const bool nan = a.nan || b.nan;  // which is less than nothing and unequal to everything
  if (op == Op::less) return boolean(nan || a.most >= b.least, a.least < b.most);
  if (op == Op::less_equal) return boolean(nan || a.most > b.least, a.least <= b.most);
  const bool apart = a.most < b.least || b.most < a.least;
  const bool same = !nan && a.least == a.most && b.least == b.most && a.least == b.least;
  return op == Op::equal ? boolean(!same, !apart) : boolean(!apart, !same);
}

/// Bounds wide enough for what rounding to float32 adds.
Range rounded(double least, double most, bool nan, double error = kRounding) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  constexpr double kSmallest = std::numeric_limits<float>::min();  // below it float32 may give 0
  if (std::isnan(least) || std::isnan(most)) return anything(Type::real);
  least -= error * std::abs(least) + (least > -kSmallest ? 2 * kSmallest : 0.0);
  most += error * std::abs(most) + (most < kSmallest ? 2 * kSmallest : 0.0);
  if (least < -kLargest) least = -kInfinity;
  if (most > kLargest) most = kInfinity;
  return reals(std::min(least, kLargest), std::max(most, -kLargest), nan);
}

/// As of_corners(); NaN at a corner can be anything.
template <class F>
Range of_real_corners(const Range& a, const Range& b, const F& f, double error = kRounding) {
  const double corners[] = {f(a.least, b.least), f(a.least, b.most), f(a.most, b.least),
                            f(a.most, b.most)};
  for (const double corner : corners) {
    if (std::isnan(corner)) return anything(Type::real);
  }
  const auto [least, most] = std::minmax_element(std::begin(corners), std::end(corners));
  return rounded(*least, *most, a.nan || b.nan, error);
}

Range real_quotient(const Range& a, const Range& b) {
  if (b.least <= 0.0 && b.most >= 0.0) return anything(Type::real);
  return of_real_corners(a, b, [](double x, double y) { return x / y; });
}

Range real_pair(Op op, const Range& a, const Range& b) {
  const bool nan = a.nan || b.nan;
  switch (op) {
    case Op::add:
      return rounded(a.least + b.least, a.most + b.most, nan);
    case Op::subtract:
      return rounded(a.least - b.most, a.most - b.least, nan);
    case Op::multiply:
      return of_real_corners(a, b, [](double x, double y) { return x * y; });
    case Op::divide:
      return real_quotient(a, b);
    case Op::floor_divide: {
      const Range whole = real_quotient(a, b);
      return reals(std::floor(whole.least), std::floor(whole.most), whole.nan);
    }
    case Op::modulo:
      if (b.least > 0.0 && b.most < kInfinity && std::isfinite(a.least) && std::isfinite(a.most)) {
        return rounded(0.0, b.most, nan);
      }
      return anything(Type::real);
    case Op::minimum:
      return reals(std::min(a.least, b.least), std::min(a.most, b.most), nan);
    case Op::maximum:
      return reals(std::max(a.least, b.least), std::max(a.most, b.most), nan);
    case Op::power:
      if (a.least > 0.0) {
        return of_real_corners(
            a, b, [](double x, double y) { return std::pow(x, y); }, kFunction);
      }
      return anything(Type::real);
    default:
      return anything(Type::real);
  }
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) { return std::isinf(x) && x < 0.0 ? 0.0 : x * sigmoid(x); }
double gelu(double x) {
  return std::isinf(x) && x < 0.0 ? 0.0 : 0.5 * x * (1.0 + std::erf(x * std::sqrt(0.5)));
}

/// The range of a function that falls to `lowest` below 0 and rises above 0.
Range dipping(const Range& x, double (*f)(double), double lowest) {
  const double most = std::max(f(x.least), f(x.most));
  return rounded(x.least >= 0.0 ? f(x.least) : lowest, std::max(most, 0.0), x.nan, kFunction);
}

Range rising(const Range& x, double (*f)(double), double error = kFunction) {
  return rounded(f(x.least), f(x.most), x.nan, error);
}

Range stepping(const Range& x, double (*f)(double)) { return reals(f(x.least), f(x.most), x.nan); }

Range real_function(Op op, const Range& x) {
  switch (op) {
    case Op::negate:
      return reals(-x.most, -x.least, x.nan);
    case Op::absolute:
      if (x.least >= 0.0) return x;
      if (x.most <= 0.0) return reals(-x.most, -x.least, x.nan);
      return reals(0.0, std::max(-x.least, x.most), x.nan);
    case Op::exp:
      return rising(x, std::exp);
    case Op::exp2:
      return rising(x, std::exp2);
    case Op::log:
      return x.least > 0.0 ? rising(x, std::log) : anything(Type::real);
    case Op::sqrt:
      return x.least >= 0.0 ? rising(x, std::sqrt) : anything(Type::real);
    case Op::rsqrt:
      if (x.least <= 0.0) return anything(Type::real);
      return rounded(1.0 / std::sqrt(x.most), 1.0 / std::sqrt(x.least), x.nan, kFunction);
    case Op::tanh:
      return rising(x, std::tanh);
    case Op::sigmoid:
      return rising(x, sigmoid);
    case Op::sin:
    case Op::cos: {
      const bool finite = std::isfinite(x.least) && std::isfinite(x.most);
      return reals(-1.0 - kFunction, 1.0 + kFunction, x.nan || !finite);
    }
    case Op::atan:
      return rising(x, std::atan);
    case Op::erf:
      return rising(x, std::erf);
    case Op::relu:
      return reals(std::max(x.least, 0.0), std::max(x.most, 0.0), x.nan);
    case Op::silu:
      return dipping(x, silu, -0.2785);
    case Op::gelu:
      return dipping(x, gelu, -0.17);
    case Op::floor:
      return stepping(x, std::floor);
    case Op::ceil:
      return stepping(x, std::ceil);
    case Op::round:
      return stepping(x, std::nearbyint);
    case Op::sign:
      return stepping(x, [](double v) { return v > 0.0 ? 1.0 : v < 0.0 ? -1.0 : 0.0; });
    default:
      return anything(Type::real);
  }
}

Range real_of_integer(const Range& x) {
  constexpr std::int64_t kExact = std::int64_t{1} << 24;
  const auto least = static_cast<double>(x.low);
  const auto most = static_cast<double>(x.high);
  return magnitude(x) <= kExact ? reals(least, most) : rounded(least, most, false);
}

/// Towards 0; NaN gives 0.
Range truncated(const Range& x) {
  const auto whole = [](double v) {
    return static_cast<std::int64_t>(
        std::clamp(v, static_cast<double>(kLowest), static_cast<double>(kHighest)));
  };
  std::int64_t low = whole(x.least);
  std::int64_t high = whole(x.most);
  if (x.nan) {
    low = std::min<std::int64_t>(low, 0);
    high = std::max<std::int64_t>(high, 0);
  }
  return integers(low, high);
}

}  // namespace

Range integers(std::int64_t low, std::int64_t high) { return narrowed(low, high, 0, 0); }

Range reals(double least, double most, bool nan) {
  Range range;
  range.least = least;
  range.most = most;
  range.nan = nan;
  return range;
}

Range stored_reals(double least, double most, bool nan) {
  const auto exact = [](double x) { return std::isinf(x) || static_cast<float>(x) == x; };
  return exact(least) && exact(most) ? reals(least, most, nan) : rounded(least, most, nan);
}

Range anything(Type type) {
  if (type == Type::real) return reals(-kInfinity, kInfinity, true);
  return type == Type::boolean ? integers(0, 1) : integers(kLowest, kHighest);
}

Range hull(Type type, const Range& a, const Range& b) {
  if (type == Type::real) {
    return reals(std::min(a.least, b.least), std::max(a.most, b.most), a.nan || b.nan);
  }
  const std::uint32_t known = a.known & b.known & ~(a.bits ^ b.bits);
  return narrowed(std::min(a.low, b.low), std::max(a.high, b.high), known, a.bits & known);
}

Range apply(Op op, Type operands, std::span<const Range> args) {
  const bool real = operands == Type::real;
  const Range& a = args[0];
  switch (op) {
    case Op::where:
      if (a.always()) return args[1];
      return a.never() ? args[2] : hull(operands, args[1], args[2]);
    case Op::to_real:
      return real_of_integer(a);
    case Op::to_integer:
      return real ? truncated(a) : a;
    case Op::to_boolean:
      return real ? compared_reals(Op::not_equal, a, reals(0.0, 0.0))
                  : compared_integers(Op::not_equal, a, integers(0, 0));
    case Op::logical_not:
      return integers(1 - a.high, 1 - a.low);
    case Op::equal:
    case Op::not_equal:
    case Op::less:
    case Op::less_equal:
      return real ? compared_reals(op, a, args[1]) : compared_integers(op, a, args[1]);
    default:
      break;
  }
  if (args.size() == 1) return real ? real_function(op, a) : integer_function(op, a);
  return real ? real_pair(op, a, args[1]) : integer_pair(op, a, args[1]);
}

}  // namespace tilewise::expression
