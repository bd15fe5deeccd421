/// AMX's tile registers in memory, instruction by instruction, for machines that have none: the
/// arithmetic of the AMX rows, without their speed. TILEWISE_CPU_ISA=amx_emulated takes it.
#include "cpu/micro/bf16_attend_impl.h"
#include "cpu/micro/bf16_tile_reading_impl.h"

namespace tilewise::cpu {
namespace {

/// As the instructions are defined: rows and bytes of the configuration, the rest of a register 0;
/// TDPBF16PS sums even and odd products of a row apart, each step rounded to nearest even, and
/// takes and gives subnormals as 0.
struct Emulated {
  struct Register {
    int rows, row_bytes;
    alignas(64) std::uint8_t bytes[16][64];
  };
  static inline thread_local Register registers[8];

  static void configure(const TileConfig& config) {
    for (int n = 0; n < 8; ++n) {
      registers[n].rows = config.rows[n];
      registers[n].row_bytes = config.row_bytes[n];
    }
  }
  static void release() {
    for (Register& r : registers) r.rows = r.row_bytes = 0;
  }
  template <int N>
  static void zero() {
    __builtin_memset(registers[N].bytes, 0, sizeof(registers[N].bytes));
  }
  template <int N>
  static void load(const void* from, std::ptrdiff_t row_bytes) {
    Register& to = registers[N];
    zero<N>();
    for (std::ptrdiff_t r = 0; r < to.rows; ++r) {
      __builtin_memcpy(to.bytes[r], static_cast<const char*>(from) + r * row_bytes,
                       static_cast<std::size_t>(to.row_bytes));
    }
  }
  template <int N>
  static void store(void* to, std::ptrdiff_t row_bytes) {
    const Register& from = registers[N];
    for (std::ptrdiff_t r = 0; r < from.rows; ++r) {
      __builtin_memcpy(static_cast<char*>(to) + r * row_bytes, from.bytes[r],
                       static_cast<std::size_t>(from.row_bytes));
    }
  }

  /// Subnormals become 0.
  static __m512 flushed(__m512 x) {
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    return _mm512_maskz_mov_ps(_mm512_test_epi32_mask(_mm512_castps_si512(x), exponent), x);
  }
  static __m512 even(__m512i pairs) {
    return flushed(_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
  }
  static __m512 odd(__m512i pairs) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
    return flushed(_mm512_castsi512_ps(_mm512_and_si512(pairs, upper)));
  }

  /// C += A B.
  template <int C, int A, int B>
  static void dot() {
    for (std::ptrdiff_t m = 0; m < registers[C].rows; ++m) {
      __m512 even_sum = _mm512_setzero_ps();
      __m512 odd_sum = _mm512_setzero_ps();
      for (std::ptrdiff_t k = 0; k < registers[A].row_bytes / 4; ++k) {
        int pair;
        __builtin_memcpy(&pair, registers[A].bytes[m] + 4 * k, sizeof(pair));
        const __m512i a = _mm512_set1_epi32(pair);
        const __m512i b = _mm512_load_si512(registers[B].bytes[k]);
        even_sum = flushed(_mm512_fmadd_ps(even(a), even(b), even_sum));
        odd_sum = flushed(_mm512_fmadd_ps(odd(a), odd(b), odd_sum));
      }
      void* row = registers[C].bytes[m];
      const __m512 sum = flushed(_mm512_add_ps(even_sum, odd_sum));
      _mm512_store_ps(row, flushed(_mm512_add_ps(flushed(_mm512_load_ps(row)), sum)));
    }
  }
};

}  // namespace

const Bf16Micro& bf16_micro_emulated() {
  static constexpr Bf16Micro kMicro =
      make_bf16_micro<TileProducts<Emulated>, TileReading<Emulated>>(attend<Emulated>);
  return kMicro;
}

}  // namespace tilewise::cpu
