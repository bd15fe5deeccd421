/// The row passes, written once over vectors of kLanes floats and compiled per instruction set.
/// Everything is in an unnamed namespace: no function of an AVX-512 unit can be linked into
/// another.
#pragma once

#include "cpu/micro/lanes_impl.h"
#include "cpu/micro/row_bits_impl.h"
#include "cpu/textbook/row_passes.h"

namespace tilewise::cpu {
namespace {

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
