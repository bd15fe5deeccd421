/// How many bfloat16 products vdpbf16ps makes in the time of a float32 multiply-add.
#include <immintrin.h>

#include "cpu/micro/bf16_micro.h"

namespace tilewise::cpu {
namespace {

constexpr int kChains = 12;  // more than an instruction's latency takes
constexpr int kTurns = 400;
constexpr int kTrials = 9;

/// Cycles of the time stamp counter that kTurns of every chain take.
template <class Turn>
unsigned long long ticks(Turn turn) {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  const unsigned long long begin = __rdtsc();
#pragma GCC unroll 1
  for (int n = 0; n < kTurns; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      sums[i] = turn(sums[i]);
      asm volatile("" : "+v"(sums[i]));
    }
  }
  return __rdtsc() - begin;
}

}  // namespace

double bf16_product_rate_avx512bf16() {
  const __m512 ones = _mm512_set1_ps(1.0F);
  const auto pairs = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f80));
  unsigned long long floats = ~0ULL, halves = ~0ULL;
  // The least of several trials in turn: whatever else ran, neither has more of it.
  for (int trial = 0; trial < kTrials; ++trial) {
    const auto f = ticks([&](__m512 sum) { return _mm512_fmadd_ps(ones, ones, sum); });
    const auto h = ticks([&](__m512 sum) { return _mm512_dpbf16_ps(sum, pairs, pairs); });
    if (f < floats) floats = f;
    if (h < halves) halves = h;
  }
  return halves == 0 ? 1.0 : 2.0 * static_cast<double>(floats) / static_cast<double>(halves);
}

}  // namespace tilewise::cpu
