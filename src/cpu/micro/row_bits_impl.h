/// Row passes on bits: conversions of half types and dropout's random words. Part of
/// row_passes_impl.h: in an unnamed namespace, compiled per instruction set.
#pragma once

#include <immintrin.h>

#include "cpu/textbook/row_passes.h"
#include "problem/philox.h"

namespace tilewise::cpu {
namespace {

void widen_bfloat16(std::int64_t n, const std::uint16_t* in, float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = __builtin_bit_cast(float, static_cast<std::uint32_t>(in[i]) << 16);
  }
}

void narrow_bfloat16(std::int64_t n, const float* in, std::uint16_t* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = __builtin_bit_cast(std::uint32_t, in[i]);
    const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    const std::uint32_t quiet = (bits >> 16) | 0x40U;
    out[i] = static_cast<std::uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet : rounded);
  }
}

void widen_float16(std::int64_t n, const std::uint16_t* in, float* out) {
  for (std::int64_t i = 0; i < n; ++i) {  // as float16_to_float() in elements.cpp
    const std::uint32_t half = in[i];
    const float scaled = __builtin_bit_cast(float, (half & 0x7FFFU) << 13) * 0x1p112F;
    const std::uint32_t special = (half & 0x7C00U) == 0x7C00U ? 0x7F800000U : 0U;
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, scaled) | special;
    out[i] = __builtin_bit_cast(float, bits | (half & 0x8000U) << 16);
  }
}

void narrow_float16(std::int64_t n, const float* in, std::uint16_t* out) {
  for (std::int64_t i = 0; i < n; ++i) {  // as float_to_float16() in elements.cpp
    const auto bits = __builtin_bit_cast(std::uint32_t, in[i]);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const std::uint32_t normal =
        (magnitude + 0xFFFU + ((magnitude >> 13) & 1U) - 0x38000000U) >> 13;
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5F;
    const std::uint32_t subnormal = __builtin_bit_cast(std::uint32_t, shifted) - 0x3F000000U;
    std::uint32_t half = magnitude < 0x38800000U ? subnormal : normal;
    half = magnitude >= 0x477FF000U ? 0x7C00U : half;  // rounds past 65504
    half = magnitude > 0x7F800000U ? 0x7E00U : half;
    out[i] = static_cast<std::uint16_t>(half | (bits >> 16 & 0x8000U));
  }
}

/// Counters side by side, one in each 64-bit lane; only the low half of a lane counts.
using Counters = unsigned long long __attribute__((vector_size(kVectorBytes)));
constexpr int kCounters = kVectorBytes / 8;
constexpr int kChains = 4;
constexpr int kWords = 4 * kCounters * kChains;

/// Products of the low halves, 64 bits each.
inline Counters multiply(Counters a, std::uint32_t b) {
  const Counters factor = Counters{} + b;
#if defined(__AVX512F__)
  return reinterpret_cast<Counters>(
      _mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(factor)));
#elif defined(__AVX2__)
  return reinterpret_cast<Counters>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(factor)));
#else
  return reinterpret_cast<Counters>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(factor)));
#endif
}

/// Lanes of a and b in turns: the lower halves, then the upper ones.
inline void interleave(Counters a, Counters b, Counters* out) {
#if defined(__AVX512F__)
  out[0] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  out[1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#elif defined(__AVX2__)
  out[0] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  out[1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#else
  out[0] = __builtin_shufflevector(a, b, 0, 2);
  out[1] = __builtin_shufflevector(a, b, 1, 3);
#endif
}

/// Philox 4x32-10 of counters that follow each other: the words of kWords keys. Several vectors of
/// counters at once, because a round waits for its products.
inline void philox_words(const DropoutRow& row, std::uint32_t j4, std::uint32_t* words) {
  constexpr unsigned long long kLow = 0xFFFFFFFFU;
  Counters first;
  for (int i = 0; i < kCounters; ++i) first[i] = static_cast<std::uint32_t>(i);
  Counters c0[kChains];
  Counters c1[kChains];
  Counters c2[kChains];
  Counters c3[kChains];
  for (int i = 0; i < kChains; ++i) {
    c0[i] = first + (j4 + static_cast<std::uint32_t>(i * kCounters));
    c1[i] = Counters{} + row.query;
    c2[i] = Counters{} + row.head;
    c3[i] = Counters{} + row.offset;
  }
  std::uint32_t key0 = row.key0;
  std::uint32_t key1 = row.key1;
  for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma GCC unroll 4
    for (int i = 0; i < kChains; ++i) {
      const Counters product0 = multiply(c0[i], kPhiloxMultiplier0);
      const Counters product1 = multiply(c2[i], kPhiloxMultiplier1);
      c0[i] = (product1 >> 32) ^ c1[i] ^ (Counters{} + key0);
      c1[i] = product1;
      c2[i] = (product0 >> 32) ^ c3[i] ^ (Counters{} + key1);
      c3[i] = product0;
    }
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  Counters out[2 * kChains];
  for (std::ptrdiff_t i = 0; i < kChains; ++i) {
    interleave((c0[i] & kLow) | c1[i] << 32, (c2[i] & kLow) | c3[i] << 32, out + 2 * i);
  }
  __builtin_memcpy(words, out, sizeof out);
}

void drop(std::int64_t n, const DropoutRow& row, float* x) {
  if (row.threshold > 0xFFFFFFFFU) {  // p = 1 keeps nothing
    for (std::int64_t i = 0; i < n; ++i) x[i] = 0.0F;
    return;
  }
  const auto threshold = static_cast<std::uint32_t>(row.threshold);
  const float scale = row.scale;  // not to be read again after each store
  std::uint32_t words[kWords];
  const std::int64_t skipped = row.first_key % 4;  // words of keys before the first
  for (std::int64_t at = -skipped; at < n; at += kWords) {
    philox_words(row, static_cast<std::uint32_t>((row.first_key + at) / 4), words);
    if (at >= 0 && at + kWords <= n) {
      for (int i = 0; i < kWords; ++i) {
        const float kept = x[at + i] * scale;
        x[at + i] = words[i] >= threshold ? kept : 0.0F;
      }
      continue;
    }
    for (int i = 0; i < kWords; ++i) {
      if (at + i < 0 || at + i >= n) continue;
      x[at + i] = words[i] >= threshold ? x[at + i] * scale : 0.0F;
    }
  }
}

}  // namespace
}  // namespace tilewise::cpu
