/// How many bfloat16 products vdpbf16ps makes in the time of a float32 multiply-add.
#include <x86intrin.h>

#include "cpu/micro/bf16_micro.h"

namespace tilewise::cpu {
namespace {

constexpr int kTurns = 400;
constexpr int kTrials = 9;

/// Ticks of the time stamp counter that kTurns of twelve chains take: more chains than the
/// instruction's latency needs. All operands are 0.
/// NOTE: a whole loop of instructions. A compiler that does not optimise keeps sums in memory, and
/// then both kinds are as slow.
template <bool Halves>
unsigned long long ticks() {
  int turns = kTurns;
  const unsigned long long begin = __rdtsc();
  asm volatile(
      ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12\n\t"
      "vpxord %%zmm\\n, %%zmm\\n, %%zmm\\n\n\t"
      ".endr\n"
      "1:\n\t"
      ".irp n,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      ".if %c[halves]\n\t"
      "vdpbf16ps %%zmm12, %%zmm12, %%zmm\\n\n\t"
      ".else\n\t"
      "vfmadd231ps %%zmm12, %%zmm12, %%zmm\\n\n\t"
      ".endif\n\t"
      ".endr\n\t"
      "dec %[turns]\n\t"
      "jnz 1b"
      : [turns] "+r"(turns)
      : [halves] "i"(Halves)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12");
  return __rdtsc() - begin;
}

}  // namespace

double bf16_product_rate_avx512bf16() {
  unsigned long long floats = ~0ULL, halves = ~0ULL;
  // The least of several trials in turn: whatever else ran, neither has more of it.
  for (int trial = 0; trial < kTrials; ++trial) {
    const auto f = ticks<false>();
    const auto h = ticks<true>();
    if (f < floats) floats = f;
    if (h < halves) halves = h;
  }
  return halves == 0 ? 1.0 : 2.0 * static_cast<double>(floats) / static_cast<double>(halves);
}

}  // namespace tilewise::cpu
