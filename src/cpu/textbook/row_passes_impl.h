/// The row passes, written once over vectors of kLanes floats (the compilers' vector extension) and
/// compiled per instruction set. Everything is in an unnamed namespace: no function of an AVX-512
/// unit can be linked into another.
#pragma once

#include "cpu/micro/micro_impl.h"
#include "cpu/textbook/row_passes.h"

namespace tilewise::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

}  // namespace
}  // namespace tilewise::cpu

#include "cpu/micro/row_bits_impl.h"

namespace tilewise::cpu {
namespace {

/// A vector of the unit's instruction set, with what micro_impl.h's exp_by_polynomial() asks of
/// one. NOTE: not a template over the width: GCC 12 loses vector attributes that depend on a
/// parameter.
struct Lanes {
  using Float = float __attribute__((vector_size(kVectorBytes)));
  using Unsigned = unsigned __attribute__((vector_size(kVectorBytes)));
  using Signed = int __attribute__((vector_size(kVectorBytes)));
  static constexpr int kLanes = kVectorBytes / 4;

  static Float set(float x) { return Float{} + x; }
  static Float load(const float* p) {
    Float x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(float* p, Float x) { __builtin_memcpy(p, &x, sizeof x); }
  static Float add(Float a, Float b) { return a + b; }
  static Float mul(Float a, Float b) { return a * b; }
  static Float fma(Float a, Float b, Float c) { return a * b + c; }
  // The second operand for NaN, as the instructions do.
  static Float max(Float a, Float b) { return a > b ? a : b; }
  static Float min(Float a, Float b) { return a < b ? a : b; }
  /// To the nearest whole number, |x| < 2^22: what adding kMagic leaves of it.
  static Float round(Float x) { return (x + set(kMagic)) - set(kMagic); }
  static Float zero_below(Float x, float bound, Float y) { return x < bound ? Float{} : y; }
  static Float exp(Float x) { return exp_by_polynomial<Lanes>(x); }
  /// x * 2^n in two steps: 2^n alone may not be a normal number.
  static Float scale2(Float x, Float n) {
    const Signed whole = __builtin_convertvector(n, Signed);
    const Signed half = whole >> 1;
    return x * power_of_two(half) * power_of_two(whole - half);
  }

 private:
  static constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23

  static Float power_of_two(Signed n) {
    const Unsigned bits = (reinterpret_cast<Unsigned>(n) + 127U) << 23;
    return reinterpret_cast<Float>(bits);
  }
};

using Float = Lanes::Float;

/// The last n < kLanes floats of a row, the rest filled up.
inline Float load_tail(std::int64_t n, const float* p, float filler) {
  float lanes[Lanes::kLanes];
  for (int i = 0; i < Lanes::kLanes; ++i) lanes[i] = i < n ? p[i] : filler;
  return Lanes::load(lanes);
}

inline void store_tail(std::int64_t n, float* p, Float x) {
  float lanes[Lanes::kLanes];
  Lanes::store(lanes, x);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

/// acc = step(acc, x's vectors) over a row, with four accumulators so that steps do not wait for
/// each other; then the accumulators and lanes are joined.
template <class Step, class Join>
inline float reduce(std::int64_t n, const float* x, float start, const Step& step,
                    const Join& join) {
  constexpr int kParts = 4;
  Float acc[kParts];
  for (auto& part : acc) part = Lanes::set(start);
  std::int64_t i = 0;
  for (; i + std::int64_t{kParts} * Lanes::kLanes <= n; i += std::int64_t{kParts} * Lanes::kLanes) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const std::int64_t at = i + std::int64_t{part} * Lanes::kLanes;
      acc[part] = step(acc[part], Lanes::load(x + at), at);
    }
  }
  for (; i + Lanes::kLanes <= n; i += Lanes::kLanes) acc[0] = step(acc[0], Lanes::load(x + i), i);
  if (i < n) acc[1] = step(acc[1], load_tail(n - i, x + i, start), i);
  const auto joined = join(join(acc[0], acc[1]), join(acc[2], acc[3]));
  float lanes[Lanes::kLanes];
  Lanes::store(lanes, joined);
  for (int width = Lanes::kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) {
      lanes[lane] = join(lanes[lane], lanes[lane + width]);
    }
  }
  return lanes[0];
}

/// y = f(x, y) over a row.
template <class F>
inline void map(std::int64_t n, const float* x, float* y, const F& f) {
  std::int64_t i = 0;
  for (; i + Lanes::kLanes <= n; i += Lanes::kLanes)
    Lanes::store(y + i, f(Lanes::load(x + i), Lanes::load(y + i)));
  if (i == n) return;
  const std::int64_t rest = n - i;
  store_tail(rest, y + i, f(load_tail(rest, x + i, 0.0F), load_tail(rest, y + i, 0.0F)));
}

/// y = f(x) over a row; what `fold` makes of the results, from `start`.
template <class F, class Fold>
inline float map_reduce(std::int64_t n, const float* x, float* y, float start, const F& f,
                        const Fold& fold) {
  const std::int64_t whole = n / Lanes::kLanes * Lanes::kLanes;
  float folded = reduce(
      whole, x, start,
      [&](auto acc, auto value, std::int64_t at) {
        const auto result = f(value);
        Lanes::store(y + at, result);
        return fold(acc, result);
      },
      fold);
  for (std::int64_t i = whole; i < n; ++i) {
    float lanes[Lanes::kLanes];
    Lanes::store(lanes, f(Lanes::set(x[i])));
    y[i] = lanes[0];
    folded = fold(folded, lanes[0]);
  }
  return folded;
}

constexpr auto kAdd = [](auto a, auto b) { return a + b; };
constexpr auto kHighest = [](auto acc, auto x) { return x > acc ? x : acc; };
constexpr float kLowest = -__builtin_inff();

bool all_finite(std::int64_t n, const float* x) {
  // 0 * x is NaN for infinities and NaN, and stays it in a sum.
  const auto step = [](auto acc, auto value, std::int64_t) { return acc + value * 0.0F; };
  return reduce(n, x, 0.0F, step, kAdd) == 0.0F;
}

float highest(std::int64_t n, const float* x) {
  const auto step = [](auto acc, auto value, std::int64_t) { return kHighest(acc, value); };
  return reduce(n, x, kLowest, step, kHighest);
}

float sum(std::int64_t n, const float* x) {
  const auto step = [](auto acc, auto value, std::int64_t) { return acc + value; };
  return reduce(n, x, 0.0F, step, kAdd);
}

void scale(std::int64_t n, float factor, const float* x, float* y) {
  map(n, x, y, [&](auto value, auto) { return value * factor; });
}

void scale_rows(int rows, std::int64_t n, const float* row_factor, float factor, const float* x,
                std::int64_t ld_x, float* y, std::int64_t ld_y) {
  for (int r = 0; r < rows; ++r, x += ld_x, y += ld_y) {
    scale(n, row_factor != nullptr ? row_factor[r] * factor : factor, x, y);
  }
}

void exp_row(std::int64_t n, float shift, float* x) {
  map(n, x, x, [&](auto value, auto) { return Lanes::exp(value - shift); });
}

float dot_seen(std::int64_t n, const float* p, const float* dp) {
  const auto step = [&](Float acc, Float value, std::int64_t at) {
    const auto other =
        at + Lanes::kLanes <= n ? Lanes::load(dp + at) : load_tail(n - at, dp + at, 0.0F);
    const Float none{};
    return acc + (value != none ? value * other : none);
  };
  return reduce(n, p, 0.0F, step, kAdd);
}

void score_gradient(std::int64_t n, const float* p, float delta, float* dp) {
  const Float none{};
  map(n, p, dp,
      [&](Float seen, Float value) { return seen != none ? seen * (value - delta) : none; });
}

void score_gradient_scaled(std::int64_t n, const float* p, float delta, float factor, float* dp) {
  const Float none{};
  map(n, p, dp, [&](Float seen, Float value) {
    return seen != none ? seen * (value - delta) * factor : none;
  });
}

void add_scaled(std::int64_t n, float factor, const float* x, float* y) {
  map(n, x, y, [&](auto value, auto sum_so_far) { return sum_so_far + value * factor; });
}

float scale_highest(std::int64_t n, float factor, float* x) {
  return map_reduce(
      n, x, x, kLowest, [&](auto value) { return value * factor; }, kHighest);
}

float exp_sum(std::int64_t n, float shift, const float* x, float* y) {
  return map_reduce(
      n, x, y, 0.0F, [&](auto value) { return Lanes::exp(value - shift); }, kAdd);
}

constexpr RowPasses make_row_passes() {
  return {.all_finite = all_finite,
          .highest = highest,
          .sum = sum,
          .scale = scale,
          .scale_rows = scale_rows,
          .exp = exp_row,
          .dot_seen = dot_seen,
          .score_gradient = score_gradient,
          .add_scaled = add_scaled,
          .scale_highest = scale_highest,
          .exp_sum = exp_sum,
          .score_gradient_scaled = score_gradient_scaled,
          .widen_bfloat16 = widen_bfloat16,
          .narrow_bfloat16 = narrow_bfloat16,
          .widen_float16 = widen_float16,
          .narrow_float16 = narrow_float16,
          .drop = drop};
}

}  // namespace
}  // namespace tilewise::cpu
