/// The bfloat16 products on AMX: TDPBF16PS, 16 x 16 x 32 a time. Intel SDM 2, chapters 3 and 4;
/// volume 1, chapter 18.
#include "cpu/micro/bf16_attend_impl.h"
#include "cpu/micro/bf16_tile_reading_impl.h"

namespace tilewise::cpu {
namespace {

// NOTE: instructions, not intrinsics: GCC's take the register's number as text, so it cannot be a
// template argument.
struct Amx {
  static void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
  static void release() { asm volatile("tilerelease"); }
  template <int N>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(N));
  }
  template <int N>
  static void load(const void* from, std::ptrdiff_t row_bytes) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(N), "r"(from), "r"(row_bytes) : "memory");
  }
  template <int N>
  static void store(void* to, std::ptrdiff_t row_bytes) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(N), "r"(to), "r"(row_bytes) : "memory");
  }
  /// C += A B.
  template <int C, int A, int B>
  static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

}  // namespace

const Bf16Micro& bf16_micro_amx() {
  static constexpr Bf16Micro kMicro =
      make_bf16_micro<TileProducts<Amx>, TileReading<Amx>>(attend<Amx>);
  return kMicro;
}

}  // namespace tilewise::cpu
