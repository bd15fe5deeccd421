/// A vector of the unit's instruction set by the compilers' vector extension, for passes over rows
/// of any length at any address. Everything is in an unnamed namespace: no function of an AVX-512
/// unit can be linked into another.
#pragma once

#include "cpu/micro/micro_impl.h"

namespace tilewise::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

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
  static Float sub(Float a, Float b) { return a - b; }
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
  static Float absolute(Float x) {
    return reinterpret_cast<Float>(reinterpret_cast<Signed>(x) & 0x7FFFFFFF);
  }
  /// tanh |x| = -e / (2 + e) with e = exp(-2 |x|) - 1, which the reduction gives without
  /// cancellation: 3 ulp, also where tanh x is near x.
  static Float tanh(Float x) {
    constexpr float kIsOne = 10.0F;  // rounded, from 9.02 on
    const Float magnitude = absolute(x);
    const Float y = -2.0F * (magnitude > kIsOne ? set(kIsOne) : magnitude);
    const Float n = round(y * kLog2E);
    Float r = fma(n, set(-kLn2High), y);
    r = fma(n, set(-kLn2Low), r);
    Float q = set(kExpPolynomial[kTerms - 1]);
#pragma GCC unroll 5
    for (int i = kTerms - 2; i >= 0; --i) q = fma(q, r, set(kExpPolynomial[i]));
    const Float power = power_of_two(__builtin_convertvector(n, Signed));
    const Float e = fma(power, q * r, power - 1.0F);
    const Float t = absolute(e / (2.0F + e));
    const Signed sign = reinterpret_cast<Signed>(x) & kSignBit;
    return reinterpret_cast<Float>(reinterpret_cast<Signed>(t) | sign);
  }

 private:
  static constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23
  static constexpr int kSignBit = -2147483647 - 1;

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

}  // namespace
}  // namespace tilewise::cpu
