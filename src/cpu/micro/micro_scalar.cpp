/// The micro-kernels for any x86-64 CPU: one lane.
#include "cpu/micro/elements.h"
#include "cpu/micro/micro_impl.h"

namespace tilewise::cpu {
namespace {

struct Scalar {
  using Float = float;
  static constexpr int kLanes = 1;
  static constexpr int kRows = 2;
  static constexpr int kVectors = 4;
  static constexpr int kSumVectors = 2;

  static Float zero() { return 0.0F; }
  static Float set(float x) { return x; }
  static Float load(const float* p) { return *p; }
  static Float load(const Bfloat16* p) { return bfloat16_to_float(p->bits); }
  static Float load(const Float16* p) { return float16_to_float(p->bits); }
  static void store(float* p, Float x) { *p = x; }
  static Float add(Float a, Float b) { return a + b; }
  static Float sub(Float a, Float b) { return a - b; }
  static Float mul(Float a, Float b) { return a * b; }
  static Float fma(Float a, Float b, Float c) { return a * b + c; }
  static Float max(Float a, Float b) { return a > b ? a : b; }
  static Float min(Float a, Float b) { return a < b ? a : b; }
  static Float round(Float x) {
    constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
    return (x + kMagic) - kMagic;
  }
  static float sum(Float x) { return x; }
  static float highest(Float x) { return x; }
  static void transpose(Float* /*x*/) {}
  static Float exp(Float x) { return exp_by_polynomial<Scalar>(x); }
  static Float exp2(Float x) { return exp2_by_polynomial<Scalar>(x); }
  static Float exp2_of_finite(Float x) { return exp2(x); }
  static Float zero_below(Float x, float bound, Float y) { return x < bound ? 0.0F : y; }
  static Float scale2(Float x, Float n) {
    if (n != n) return x;  // x is NaN too
    const int whole = static_cast<int>(n);
    const int half = whole / 2;  // two steps: 2^n alone may be subnormal
    return x * power_of_two(half) * power_of_two(whole - half);
  }

 private:
  static float power_of_two(int n) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(n + 127) << 23);
  }
};

}  // namespace

const Micro& micro_scalar() {
  static constexpr Micro kMicro = make_micro<Scalar>(Isa::scalar);
  return kMicro;
}

const Micro& micro(Isa isa) {
  if (isa >= Isa::avx512) return micro_avx512();
  return isa == Isa::avx2 ? micro_avx2() : micro_scalar();
}

}  // namespace tilewise::cpu
