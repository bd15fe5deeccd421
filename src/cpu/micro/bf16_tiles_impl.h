/// The bfloat16 products on matrix tiles: C in 2 x 2 tiles of 16 x 16, each step 16 x 32 of A and
/// of B^T. T is the machine's tile registers or their emulation: zero, load, store, dot by register
/// number.
#pragma once

#include "cpu/micro/bf16_impl.h"

namespace tilewise::cpu {
namespace {

/// The 64 bytes that ldtilecfg reads: all eight registers are 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

template <class T>
struct TileProducts {
  static void enter() {
    static constexpr TileConfig kConfig;
    T::configure(kConfig);
  }
  static void leave() { T::release(); }

  /// R x C tiles of C into registers 0 to 3, and back.
  template <int R = 2, int C = 2>
  static void load_sums(const float* c, std::ptrdiff_t ldc) {
    T::template load<0>(c, ldc * 4);
    if constexpr (C == 2) T::template load<1>(c + 16, ldc * 4);
    if constexpr (R == 2) T::template load<2>(c + 16 * ldc, ldc * 4);
    if constexpr (R == 2 && C == 2) T::template load<3>(c + 16 * ldc + 16, ldc * 4);
  }
  template <int R = 2, int C = 2>
  static void store_sums(float* c, std::ptrdiff_t ldc) {
    T::template store<0>(c, ldc * 4);
    if constexpr (C == 2) T::template store<1>(c + 16, ldc * 4);
    if constexpr (R == 2) T::template store<2>(c + 16 * ldc, ldc * 4);
    if constexpr (R == 2 && C == 2) T::template store<3>(c + 16 * ldc + 16, ldc * 4);
  }

  /// R x C tiles of C, all of k. Registers: 0 to 3 accumulate, 4 and 5 hold A, 6 and 7 hold B.
  template <int R, int C>
  static void block(int k, const Bf16* a, std::ptrdiff_t lda, const Bf16* b, std::ptrdiff_t ldb,
                    float* c, std::ptrdiff_t ldc, bool accumulate) {
    const std::ptrdiff_t a_bytes = lda * 2;
    const std::ptrdiff_t b_bytes = ldb * 2;
    if (accumulate) {
      load_sums<R, C>(c, ldc);
    } else {
      T::template zero<0>();
      if constexpr (C == 2) T::template zero<1>();
      if constexpr (R == 2) T::template zero<2>();
      if constexpr (R == 2 && C == 2) T::template zero<3>();
    }
    for (std::ptrdiff_t i = 0; i < k; i += 32, b += 16 * ldb) {
      T::template load<4>(a + i, a_bytes);
      T::template load<6>(b, b_bytes);
      T::template dot<0, 4, 6>();
      if constexpr (C == 2) {
        T::template load<7>(b + 32, b_bytes);
        T::template dot<1, 4, 7>();
      }
      if constexpr (R == 2) {
        T::template load<5>(a + 16 * lda + i, a_bytes);
        T::template dot<2, 5, 6>();
      }
      if constexpr (R == 2 && C == 2) T::template dot<3, 5, 7>();
    }
    store_sums<R, C>(c, ldc);
  }

  /// A pair of row tiles against all columns.
  template <int R>
  static void strip(int cols, int k, const Bf16* a, std::ptrdiff_t lda, const Bf16* b,
                    std::ptrdiff_t ldb, float* c, std::ptrdiff_t ldc, bool accumulate) {
    std::ptrdiff_t j = 0;
    for (; j + 32 <= cols; j += 32) {
      block<R, 2>(k, a, lda, b + 2 * j, ldb, c + j, ldc, accumulate);
    }
    if (j < cols) block<R, 1>(k, a, lda, b + 2 * j, ldb, c + j, ldc, accumulate);
  }

  static void gemm(int rows, int cols, int k, const Bf16* a, std::ptrdiff_t lda, const Bf16* b,
                   std::ptrdiff_t ldb, float* c, std::ptrdiff_t ldc, bool accumulate) {
    std::ptrdiff_t r = 0;
    for (; r + 16 < rows; r += 32) {
      strip<2>(cols, k, a + r * lda, lda, b, ldb, c + r * ldc, ldc, accumulate);
    }
    if (r < rows) strip<1>(cols, k, a + r * lda, lda, b, ldb, c + r * ldc, ldc, accumulate);
  }
};

}  // namespace
}  // namespace tilewise::cpu
