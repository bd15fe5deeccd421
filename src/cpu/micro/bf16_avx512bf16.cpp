/// The bfloat16 products with vdpbf16ps: 8 x 32 register tile, 16 of 32 registers accumulate.
#include "cpu/micro/bf16_reading_impl.h"

namespace tilewise::cpu {
namespace {

struct Vectors {
  static void enter() {}
  static void leave() {}

  /// R rows x C vectors of C, all of k.
  template <int R, int C>
  static void block(int k, const Bf16* a, std::ptrdiff_t lda, const Bf16* b, std::ptrdiff_t ldb,
                    float* c, std::ptrdiff_t ldc, bool accumulate) {
    __m512 acc[R][C];
#pragma GCC unroll 8
    for (std::ptrdiff_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (std::ptrdiff_t v = 0; v < C; ++v) acc[r][v] = _mm512_setzero_ps();
    }
    for (std::ptrdiff_t i = 0; i < k; i += 2, b += ldb) {
      __m512bh rb[C];
#pragma GCC unroll 2
      for (std::ptrdiff_t v = 0; v < C; ++v)
        rb[v] = reinterpret_cast<__m512bh>(load_bits(b + 32 * v));
#pragma GCC unroll 8
      for (std::ptrdiff_t r = 0; r < R; ++r) {
        int pair;
        __builtin_memcpy(&pair, a + r * lda + i, sizeof(pair));
        const auto ra = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 2
        for (std::ptrdiff_t v = 0; v < C; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], ra, rb[v]);
      }
    }
#pragma GCC unroll 8
    for (std::ptrdiff_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (std::ptrdiff_t v = 0; v < C; ++v) {
        float* at = c + r * ldc + 16 * v;
        _mm512_storeu_ps(at,
                         accumulate ? _mm512_add_ps(_mm512_loadu_ps(at), acc[r][v]) : acc[r][v]);
      }
    }
  }

  static void gemm(int rows, int cols, int k, const Bf16* a, std::ptrdiff_t lda, const Bf16* b,
                   std::ptrdiff_t ldb, float* c, std::ptrdiff_t ldc, bool accumulate) {
    constexpr int kRows = 8;
    for (std::ptrdiff_t j = 0; j < cols; j += 32) {
      for (std::ptrdiff_t r = 0; r < rows; r += kRows) {
        const Bf16* at = a + r * lda;
        float* out = c + r * ldc + j;
        if (j + 32 <= cols) {
          block<kRows, 2>(k, at, lda, b + 2 * j, ldb, out, ldc, accumulate);
        } else {
          block<kRows, 1>(k, at, lda, b + 2 * j, ldb, out, ldc, accumulate);
        }
      }
    }
  }
};

}  // namespace

const Bf16Micro& bf16_micro_avx512bf16() {
  static constexpr Bf16Micro kMicro = make_bf16_micro<Vectors, VectorReading>();
  return kMicro;
}

}  // namespace tilewise::cpu
