/// The micro-kernels for AVX-512: 6 x 64 register tile, 24 of 32 registers accumulate.
#include "cpu/avx512_lanes.h"
#include "cpu/micro_impl.h"

namespace tilewise::cpu {
namespace {

struct Avx512 {
  using Float = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 6;
  static constexpr int kVectors = 4;

  static Float zero() { return _mm512_setzero_ps(); }
  static Float set(float x) { return _mm512_set1_ps(x); }
  static Float load(const float* p) { return _mm512_loadu_ps(p); }
  static Float load(const Bfloat16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static Float load(const Float16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void store(float* p, Float x) { _mm512_storeu_ps(p, x); }
  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
  static Float round(Float x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static float sum(Float x) { return _mm512_reduce_add_ps(x); }
  static float highest(Float x) { return _mm512_reduce_max_ps(x); }
  static void transpose(Float x[16]) {
    __m512i lanes[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) lanes[i] = _mm512_castps_si512(x[i]);
    transpose_lanes(lanes);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) x[i] = _mm512_castsi512_ps(lanes[i]);
  }
  static Float scale2(Float x, Float n) { return _mm512_scalef_ps(x, n); }
};

}  // namespace

const Micro& micro_avx512() {
  static constexpr Micro kMicro = make_micro<Avx512>(Isa::avx512);
  return kMicro;
}

}  // namespace tilewise::cpu
