/// The micro-kernels for AVX-512: 6 x 64 register tile, 24 of 32 registers accumulate.
#include "cpu/micro/avx512_lanes.h"
#include "cpu/micro/micro_impl.h"

namespace tilewise::cpu {
namespace {

/// 2^(j / 16).
alignas(64) constexpr float kPowers[16] = {1.0F,        1.04427373F, 1.09050775F, 1.13878858F,
                                           1.18920708F, 1.24185777F, 1.29683959F, 1.35425556F,
                                           1.41421354F, 1.47682619F, 1.54221082F, 1.61049032F,
                                           1.68179286F, 1.75625217F, 1.8340081F,  1.91520655F};
constexpr float kSixteenths = 786432.0F;  // 1.5 * 2^19: adding it rounds to a multiple of 1 / 16
// e^r - 1 on |r| <= ln 2 / 32 and 2^r - 1 on |r| <= 1 / 32 by r, r^2 and r^3, minimax: relative
// error 1.6e-9.
constexpr float kExpCubic[3] = {1.0F, 0.5000162F, 0.16666074F};
constexpr float kExp2Cubic[3] = {0.6931472F, 0.24023429F, 0.055502135F};

struct Avx512 {
  using Float = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 6;
  static constexpr int kVectors = 4;
  static constexpr int kSumVectors = 4;

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
  // exp and 2^x: a multiple of 1 / 16, whose fraction's power of two is one of 16 in a register,
  // and a cubic. Of these operations only the cubic's wait for Zen 4's multiply-adds.
  // NOTE: 2 to -inf is 0 in scalef without a detour, where an underflow costs Intel's CPUs some
  // hundred cycles: -inf stays it until then. max and min give their second operand for NaN, which
  // the remainder of -inf is.
  static Float exp(Float x) {
    const Float seen = min(set(128.0F), x);
    const Float shifted = fma(seen, set(kLog2E), set(kSixteenths));
    const Float t = sub(shifted, set(kSixteenths));
    const Float r = fma(t, set(-kLn2Low), fma(t, set(-kLn2High), seen));
    return powered(shifted, t, min(max(r, set(-1.0F)), set(1.0F)), kExpCubic);
  }
  static Float exp2(Float x) {
    const Float shifted = add(x, set(kSixteenths));
    const Float t = sub(shifted, set(kSixteenths));
    return powered(shifted, t, max(sub(x, t), set(-1.0F)), kExp2Cubic);
  }
  static Float exp2_of_finite(Float x) {
    const Float shifted = add(x, set(kSixteenths));
    const Float t = sub(shifted, set(kSixteenths));
    return powered(shifted, t, sub(x, t), kExp2Cubic);
  }

 private:
  /// 2^t times what the cubic c gives of r, plus 1. `shifted` has t's sixteenths in its last bits.
  static Float powered(Float shifted, Float t, Float r, const float (&c)[3]) {
    const Float power =
        _mm512_permutexvar_ps(_mm512_castps_si512(shifted), _mm512_load_ps(kPowers));
    const Float p = mul(r, fma(r, fma(r, set(c[2]), set(c[1])), set(c[0])));
    return _mm512_scalef_ps(fma(power, p, power), t);  // 2 to the whole part of t
  }
};

}  // namespace

const Micro& micro_avx512() {
  static constexpr Micro kMicro = make_micro<Avx512>(Isa::avx512);
  return kMicro;
}

}  // namespace tilewise::cpu
