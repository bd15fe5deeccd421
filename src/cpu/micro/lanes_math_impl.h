/// Functions of a vector of reals that expressions have beside exp and tanh. In an unnamed
/// namespace, compiled per instruction set, as lanes_impl.h.
#pragma once

#include <immintrin.h>

#include "cpu/micro/lanes_impl.h"

namespace tilewise::cpu {
namespace {

using Signed = Lanes::Signed;
using Unsigned = Lanes::Unsigned;

constexpr float kInfinite = __builtin_inff();
constexpr float kNotANumber = __builtin_nanf("");
constexpr float kLn2Above = 0.693359375F;  // 9 bits: its product with an exponent is exact
constexpr float kLn2Below = -2.12194440e-4F;

inline Float square_root(Float x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Float>(_mm512_sqrt_ps(reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<Float>(_mm256_sqrt_ps(reinterpret_cast<__m256>(x)));
#else
  return reinterpret_cast<Float>(_mm_sqrt_ps(reinterpret_cast<__m128>(x)));
#endif
}

/// Towards 0, for |x| < 2^23; others are whole already.
inline Float truncate(Float x) {
  const Float whole = __builtin_convertvector(__builtin_convertvector(x, Signed), Float);
  return Lanes::absolute(x) < 0x1p23F ? whole : x;
}
inline Float with_sign(Float x, Float of) {
  constexpr int kSign = -2147483647 - 1;
  return reinterpret_cast<Float>((reinterpret_cast<Signed>(x) & ~kSign) |
                                 (reinterpret_cast<Signed>(of) & kSign));
}
inline Float floor_of(Float x) {
  const Float whole = truncate(x);
  return with_sign(whole > x ? whole - 1.0F : whole, x);
}
inline Float ceil_of(Float x) {
  const Float whole = truncate(x);
  return with_sign(whole < x ? whole + 1.0F : whole, x);
}
/// Half to even.
inline Float round_of(Float x) {
  const Float whole = Lanes::absolute(x) < 0x1p22F ? Lanes::round(x) : floor_of(x);
  return with_sign(whole, x);
}

inline Float exp2_of(Float x) { return exp2_by_polynomial<Lanes>(x); }

/// x = 2^n m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s) with s = (m - 1) / (m + 1), whose
/// series leaves 2e-9. 2 ulp.
inline Float log_of(Float x) {
  const Float scaled = x < 0x1p-126F ? x * 0x1p23F : x;
  const Float shift = x < 0x1p-126F ? Lanes::set(-23.0F) : Float{};
  constexpr int kSqrtHalf = 0x3F3504F3;
  const Signed bits = reinterpret_cast<Signed>(scaled) - kSqrtHalf;
  const Signed exponent = bits >> 23;
  const Float m = reinterpret_cast<Float>((bits & 0x7FFFFF) + kSqrtHalf);
  const Float n = __builtin_convertvector(exponent, Float) + shift;
  const Float f = m - 1.0F;
  const Float s = f / (2.0F + f);
  const Float t = s * s;
  const Float series = t * (0.666666667F + t * (0.4F + t * (0.285714286F + t * 0.222222222F)));
  // log(1 + f) = f - s (f - series): f is exact, and the rest is small beside it.
  const Float part = f - s * (f - series);
  const Float y = n * kLn2Above + (part + n * kLn2Below);
  const Float finite = x < kInfinite ? y : x;  // NaN and infinity stay
  const Float zero = x == 0.0F ? Lanes::set(-kInfinite) : finite;
  return x < 0.0F ? Lanes::set(kNotANumber) : zero;
}

/// sin and cos of r + quarter pi / 2, |r| <= pi / 4, by their series.
inline Float of_quarter(Float r, Signed quarter) {
  const Float t = r * r;
  const Float sine =
      r +
      r * t * (-1.66666667e-1F + t * (8.33333333e-3F + t * (-1.98412698e-4F + t * 2.75573192e-6F)));
  const Float cosine =
      1.0F - 0.5F * t +
      t * t * (4.16666667e-2F + t * (-1.38888889e-3F + t * (2.48015873e-5F - t * 2.75573192e-7F)));
  const Float y = (quarter & 1) != 0 ? cosine : sine;
  return (quarter & 2) != 0 ? -y : y;
}

/// sin(x + turn pi / 2), the angle reduced in float64; the few past 2^28 are libm's.
inline Float sine_of_large(Float x, int turn) {
  constexpr double kTwoOverPi = 0.63661977236758134308;
  constexpr double kHalfPiHigh = 1.57079632673412561417;  // 33 bits
  constexpr double kHalfPiLow = 6.07710050650619224932e-11;
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  constexpr float kMost = 0x1p28F;
  float angle[Lanes::kLanes];
  float rest[Lanes::kLanes];
  int quarter[Lanes::kLanes];
  const Float moderate = Lanes::absolute(x) < kMost ? x : Float{};
  Lanes::store(angle, moderate);
  for (int lane = 0; lane < Lanes::kLanes; ++lane) {
    const double value = static_cast<double>(angle[lane]);
    const double n = (value * kTwoOverPi + kMagic) - kMagic;
    rest[lane] = static_cast<float>((value - n * kHalfPiHigh) - n * kHalfPiLow);
    quarter[lane] = static_cast<int>(n);
  }
  Signed quarters;
  __builtin_memcpy(&quarters, quarter, sizeof quarters);
  const Float y = of_quarter(Lanes::load(rest), quarters + turn);
  Lanes::store(angle, x);
  float out[Lanes::kLanes];
  Lanes::store(out, y);
  for (int lane = 0; lane < Lanes::kLanes; ++lane) {
    if (angle[lane] < kMost && angle[lane] > -kMost) continue;
    out[lane] = turn == 0 ? __builtin_sinf(angle[lane]) : __builtin_cosf(angle[lane]);
  }
  return Lanes::load(out);
}

/// sin(x + turn pi / 2). Products of the parts of pi / 2 with up to 13 bits are exact. 1e-7.
inline Float sine_of(Float x, int turn) {
  constexpr float kMost = 8192.0F;
  constexpr float kHalfPi[3] = {1.5703125F, 4.83751297e-4F, 7.54978995e-8F};
  float angle[Lanes::kLanes];
  Lanes::store(angle, x);
  bool large = false;
  for (const float value : angle) large |= !(value < kMost && value > -kMost);
  if (large) return sine_of_large(x, turn);
  const Float n = Lanes::round(x * 0.636619772F);
  const Float r = ((x - n * kHalfPi[0]) - n * kHalfPi[1]) - n * kHalfPi[2];
  return of_quarter(r, __builtin_convertvector(n, Signed) + turn);
}

/// Within tan(pi / 8): x plus x^3 times a polynomial of x^2. Larger ones are turned by pi / 4 or
/// pi / 2. 2e-7.
inline Float atan_of(Float x) {
  constexpr float kOdd[4] = {-0.333329491539F, 0.199777106478F, -0.138776856032F, 0.0805374449538F};
  constexpr float kEighth = 0.414213562F, kThreeEighths = 2.41421356F;  // tangents of pi / 8
  const Float a = Lanes::absolute(x);
  const Float turned = a > kThreeEighths ? -1.0F / a : (a - 1.0F) / (a + 1.0F);
  const Float from = a > kThreeEighths ? Lanes::set(1.57079633F) : Lanes::set(0.785398163F);
  const Float t = a > kEighth ? turned : a;
  const Float square = t * t;
  Float sum = Lanes::set(kOdd[3]);
#pragma GCC unroll 3
  for (int i = 2; i >= 0; --i) sum = sum * square + kOdd[i];
  const Float y = sum * square * t + t + (a > kEighth ? from : Float{});
  return x == x ? with_sign(y, x) : x;
}

/// |x| <= 1: x times a polynomial of x^2; below 4: 1 - 2^polynomial, fitted to log2 erfc. 1e-7.
inline Float erf_of(Float x) {
  constexpr float kNear[8] = {1.12837923F,    -0.376126379F,  0.112837829F,   -0.0268654376F,
                              0.00522105349F, -8.4843964e-4F, 1.12682537e-4F, -9.67359028e-6F};
  constexpr float kFar[9] = {4.37443843e-4F, -1.63048589F,    -0.9116925F,
                             -0.158665076F,  0.0380362459F,   -0.00683869515F,
                             8.55185674e-4F, -6.57733617e-5F, 2.32859861e-6F};
  const Float a = Lanes::absolute(x);
  const Float t = a * a;
  Float near = Lanes::set(kNear[7]);
#pragma GCC unroll 7
  for (int i = 6; i >= 0; --i) near = near * t + kNear[i];
  const Float within = a < 4.0F ? a : Lanes::set(4.0F);
  Float power = Lanes::set(kFar[8]);
#pragma GCC unroll 8
  for (int i = 7; i >= 0; --i) power = power * within + kFar[i];
  const Float far = a >= 4.0F ? Lanes::set(1.0F) : 1.0F - exp2_of(power);
  const Float y = a <= 1.0F ? a * near : far;
  return x == x ? with_sign(y, x) : x;
}

inline Float sigmoid_of(Float x) { return 1.0F / (1.0F + Lanes::exp(-x)); }

/// out = F(in) of each lane: what has no vector form.
template <float (*F)(float)>
inline Float each(Float x) {
  float lanes[Lanes::kLanes];
  Lanes::store(lanes, x);
  for (float& lane : lanes) lane = F(lane);
  return Lanes::load(lanes);
}
template <float (*F)(float, float)>
inline Float each(Float a, Float b) {
  float x[Lanes::kLanes];
  float y[Lanes::kLanes];
  Lanes::store(x, a);
  Lanes::store(y, b);
  for (int lane = 0; lane < Lanes::kLanes; ++lane) x[lane] = F(x[lane], y[lane]);
  return Lanes::load(x);
}

/// As Python's: the remainder has the divisor's sign.
inline float floor_remainder(float a, float b) {
  const float r = __builtin_fmodf(a, b);
  return r != 0.0F && (r < 0.0F) != (b < 0.0F) ? r + b : r;
}
inline float power_of(float a, float b) { return __builtin_powf(a, b); }

/// floor(a / b), by float64, whose quotient of two int32 is never rounded to a whole number that it
/// is not. Division by 0 gives any value.
inline Signed floor_quotient(Signed a, Signed b) {
#if defined(__AVX512F__)
  constexpr int kFloor = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const auto half = [](__m256i x, __m256i y) {
    const __m512d quotient = _mm512_div_pd(_mm512_cvtepi32_pd(x), _mm512_cvtepi32_pd(y));
    return _mm512_cvttpd_epi32(_mm512_roundscale_pd(quotient, kFloor));
  };
  const auto x = reinterpret_cast<__m512i>(a);
  const auto y = reinterpret_cast<__m512i>(b);
  const __m256i low = half(_mm512_castsi512_si256(x), _mm512_castsi512_si256(y));
  const __m256i high = half(_mm512_extracti64x4_epi64(x, 1), _mm512_extracti64x4_epi64(y, 1));
  return reinterpret_cast<Signed>(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
#elif defined(__AVX2__)
  const auto half = [](__m128i x, __m128i y) {
    return _mm256_cvttpd_epi32(
        _mm256_floor_pd(_mm256_div_pd(_mm256_cvtepi32_pd(x), _mm256_cvtepi32_pd(y))));
  };
  const auto x = reinterpret_cast<__m256i>(a);
  const auto y = reinterpret_cast<__m256i>(b);
  const __m128i low = half(_mm256_castsi256_si128(x), _mm256_castsi256_si128(y));
  const __m128i high = half(_mm256_extracti128_si256(x, 1), _mm256_extracti128_si256(y, 1));
  return reinterpret_cast<Signed>(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
#else
  int x[Lanes::kLanes];
  int y[Lanes::kLanes];
  __builtin_memcpy(x, &a, sizeof x);
  __builtin_memcpy(y, &b, sizeof y);
  for (int lane = 0; lane < Lanes::kLanes; ++lane) {
    const double divisor = y[lane] == 0 ? 1.0 : static_cast<double>(y[lane]);
    const double quotient = static_cast<double>(x[lane]) / divisor;
    const double bounded = quotient > 2147483647.0 ? -2147483648.0 : quotient;  // it wraps
    const int whole = static_cast<int>(bounded);
    x[lane] = whole - (static_cast<double>(whole) > bounded ? 1 : 0);
  }
  Signed out;
  __builtin_memcpy(&out, x, sizeof out);
  return out;
#endif
}

}  // namespace
}  // namespace tilewise::cpu
