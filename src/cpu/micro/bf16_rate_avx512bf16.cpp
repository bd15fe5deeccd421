/// How many bfloat16 products vdpbf16ps makes in the time of a float32 multiply-add.
#include <immintrin.h>

#include "cpu/micro/bf16_micro.h"

namespace tilewise::cpu {
namespace {

constexpr int kTurns = 400;
constexpr int kTrials = 9;

/// Cycles of the time stamp counter that kTurns turns of twelve chains take, more chains than an
/// instruction's latency takes. Assembly, because a compiler may keep the sums in memory, and a
/// sanitizer checks that memory: the time would be that of the checks.
template <bool kPairs>
unsigned long long ticks(__m512i ones) {
  int turns = kTurns;
  const unsigned long long begin = __rdtsc();
  asm volatile(
      ".irp chain,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "vpxord %%zmm\\chain, %%zmm\\chain, %%zmm\\chain\n\t"
      ".endr\n"
      "1:\n\t"
      ".irp chain,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      ".if %c[pairs]\n\t"
      "vdpbf16ps %[ones], %[ones], %%zmm\\chain\n\t"
      ".else\n\t"
      "vfmadd231ps %[ones], %[ones], %%zmm\\chain\n\t"
      ".endif\n\t"
      ".endr\n\t"
      "decl %[turns]\n\t"
      "jnz 1b"
      : [turns] "+r"(turns)
      : [ones] "v"(ones), [pairs] "i"(kPairs)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11");
  return __rdtsc() - begin;
}

}  // namespace

double bf16_product_rate_avx512bf16() {
  const __m512i ones = _mm512_castps_si512(_mm512_set1_ps(1.0F));
  const __m512i pairs = _mm512_set1_epi16(0x3f80);
  unsigned long long floats = ~0ULL, halves = ~0ULL;
  // The least of several trials in turn: whatever else ran, neither has more of it.
  for (int trial = 0; trial < kTrials; ++trial) {
    const unsigned long long f = ticks<false>(ones);
    const unsigned long long h = ticks<true>(pairs);
    if (f < floats) floats = f;
    if (h < halves) halves = h;
  }
  return halves == 0 ? 1.0 : 2.0 * static_cast<double>(floats) / static_cast<double>(halves);
}

}  // namespace tilewise::cpu
