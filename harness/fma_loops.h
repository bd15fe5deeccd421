/// Float32 multiply-adds from registers, as fast as a core can: what ceilings are measured with.
/// Needs nothing of the library (bench/cpu compiles it by itself).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace tilewise {

/// Independent sums: latency times throughput of FMA units, and more.
inline constexpr int kFmaChains = 12;

// NOTE: the values stay finite: x -> x * 0.999 + 0.001 has the fixed point 1.

__attribute__((target("avx512f"))) inline float fma_avx512(std::int64_t rounds) {
  const __m512 factor = _mm512_set1_ps(0.999F);
  const __m512 term = _mm512_set1_ps(0.001F);
  __m512 sums[kFmaChains];
  for (int c = 0; c < kFmaChains; ++c) sums[c] = _mm512_set1_ps(static_cast<float>(c));
  for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int c = 0; c < kFmaChains; ++c) sums[c] = _mm512_fmadd_ps(sums[c], factor, term);
  }
  for (int c = 1; c < kFmaChains; ++c) sums[0] = _mm512_add_ps(sums[0], sums[c]);
  return _mm512_cvtss_f32(sums[0]);
}

__attribute__((target("avx2,fma"))) inline float fma_avx2(std::int64_t rounds) {
  const __m256 factor = _mm256_set1_ps(0.999F);
  const __m256 term = _mm256_set1_ps(0.001F);
  __m256 sums[kFmaChains];
  for (int c = 0; c < kFmaChains; ++c) sums[c] = _mm256_set1_ps(static_cast<float>(c));
  for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int c = 0; c < kFmaChains; ++c) sums[c] = _mm256_fmadd_ps(sums[c], factor, term);
  }
  for (int c = 1; c < kFmaChains; ++c) sums[0] = _mm256_add_ps(sums[0], sums[c]);
  return _mm256_cvtss_f32(sums[0]);
}

inline float fma_sse(std::int64_t rounds) {
  const __m128 factor = _mm_set1_ps(0.999F);
  const __m128 term = _mm_set1_ps(0.001F);
  __m128 sums[kFmaChains];
  for (int c = 0; c < kFmaChains; ++c) sums[c] = _mm_set1_ps(static_cast<float>(c));
  for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int c = 0; c < kFmaChains; ++c) sums[c] = _mm_add_ps(_mm_mul_ps(sums[c], factor), term);
  }
  for (int c = 1; c < kFmaChains; ++c) sums[0] = _mm_add_ps(sums[0], sums[c]);
  return _mm_cvtss_f32(sums[0]);
}

}  // namespace tilewise
