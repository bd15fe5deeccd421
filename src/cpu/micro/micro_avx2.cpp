/// The micro-kernels for AVX2 with FMA: 6 x 16 register tile, 12 of 16 registers accumulate.
#include <immintrin.h>

#include "cpu/micro/micro_impl.h"

namespace tilewise::cpu {
namespace {

struct Avx2 {
  using Float = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 6;
  static constexpr int kVectors = 2;
  static constexpr int kSumVectors = 2;

  static Float zero() { return _mm256_setzero_ps(); }
  static Float set(float x) { return _mm256_set1_ps(x); }
  static Float load(const float* p) { return _mm256_loadu_ps(p); }
  static Float load(const Bfloat16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static Float load(const Float16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void store(float* p, Float x) { _mm256_storeu_ps(p, x); }
  static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
  static Float min(Float a, Float b) { return _mm256_min_ps(a, b); }
  static Float round(Float x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static float sum(Float x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
  }
  static float highest(Float x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
  }
  static void transpose(Float x[8]) {
    __m256 y[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
      y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      x[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
      x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
      x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
      x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      y[i] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
      y[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) x[i] = y[i];
  }
  static Float exp(Float x) { return exp_by_polynomial<Avx2>(x); }
  static Float exp2(Float x) { return exp2_by_polynomial<Avx2>(x); }
  static Float exp2_of_finite(Float x) { return exp2(x); }
  static Float zero_below(Float x, float bound, Float y) {
    return _mm256_and_ps(_mm256_cmp_ps(x, set(bound), _CMP_NLT_UQ), y);
  }
  static Float scale2(Float x, Float n) {
    const __m256i whole = _mm256_cvtps_epi32(n);  // NaN becomes INT_MIN; x is NaN then and stays it
    const __m256i half = _mm256_srai_epi32(whole, 1);  // two steps: 2^n alone may be subnormal
    return mul(mul(x, power_of_two(half)), power_of_two(_mm256_sub_epi32(whole, half)));
  }

 private:
  static Float power_of_two(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
};

}  // namespace

const Micro& micro_avx2() {
  static constexpr Micro kMicro = make_micro<Avx2>(Isa::avx2);
  return kMicro;
}

}  // namespace tilewise::cpu
