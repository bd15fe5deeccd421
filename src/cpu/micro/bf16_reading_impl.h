/// Products of a few rows with B that is read once, where it lies, by vdpbf16ps: Bf16Micro's
/// row_products and add_listed_rows. In an unnamed namespace, as in micro_impl.h.
#pragma once

#include "cpu/micro/bf16_listed_impl.h"
#include "cpu/micro/few_rows_impl.h"

namespace tilewise::cpu {
namespace {

inline __m512 dot_pairs(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

/// The sums of 16 vectors, in order.
inline __m512 sums_of(const __m512 (&x)[16]) {
  __m512 y[8];
#pragma GCC unroll 8
  for (std::ptrdiff_t i = 0; i < 8; ++i) {
    y[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]),
                         _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
  }
  __m512 z[4];  // per 128 bits a part of the sums of four
#pragma GCC unroll 4
  for (std::ptrdiff_t i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(y[2 * i]);
    const __m512d b = _mm512_castps_pd(y[2 * i + 1]);
    z[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const auto halves = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  return halves(halves(z[0], z[1]), halves(z[2], z[3]));
}

/// R rows of A by all rows of B, four of these at a time.
template <int R>
inline void row_products_of(int cols, int k, const Bf16* a, std::ptrdiff_t lda, ListedBf16& b,
                            float factor, float* c, std::ptrdiff_t ldc) {
  constexpr std::ptrdiff_t kTogether = 4;
  const std::ptrdiff_t whole = k / kPairLanes * kPairLanes;
  for (std::ptrdiff_t j = 0; j < cols; j += kTogether) {
    const Bf16* row[kTogether];
#pragma GCC unroll 4
    for (std::ptrdiff_t n = 0; n < kTogether; ++n) row[n] = b.row(j + n < cols ? j + n : cols - 1);
    __m512 acc[4 * kTogether];
#pragma GCC unroll 16
    for (std::ptrdiff_t n = 0; n < 4 * kTogether; ++n) acc[n] = _mm512_setzero_ps();
    const auto add = [&](std::ptrdiff_t i, const __m512i(&rb)[kTogether])
        __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (std::ptrdiff_t r = 0; r < R; ++r) {
        const __m512i ra = load_bits(a + r * lda + i);
#pragma GCC unroll 4
        for (std::ptrdiff_t n = 0; n < kTogether; ++n) {
          acc[kTogether * r + n] = dot_pairs(acc[kTogether * r + n], ra, rb[n]);
        }
      }
    };
    __m512i rb[kTogether];
    for (std::ptrdiff_t i = 0; i < whole; i += kPairLanes) {
      b.ask(kTogether * kPairLanes);
#pragma GCC unroll 4
      for (std::ptrdiff_t n = 0; n < kTogether; ++n) rb[n] = load_bits(row[n] + i);
      add(i, rb);
    }
    if (whole < k) {
      b.ask(kTogether * (k - whole));
#pragma GCC unroll 4
      for (std::ptrdiff_t n = 0; n < kTogether; ++n)
        rb[n] = load_first(row[n] + whole, k - static_cast<int>(whole));
      add(whole, rb);
    }
    const __m512 sums = _mm512_mul_ps(sums_of(acc), _mm512_set1_ps(factor));
    _mm_storeu_ps(c + j, _mm512_castps512_ps128(sums));
    if constexpr (R > 1) _mm_storeu_ps(c + ldc + j, _mm512_extractf32x4_ps(sums, 1));
    if constexpr (R > 2) _mm_storeu_ps(c + 2 * ldc + j, _mm512_extractf32x4_ps(sums, 2));
    if constexpr (R > 3) _mm_storeu_ps(c + 3 * ldc + j, _mm512_extractf32x4_ps(sums, 3));
  }
}

/// R rows x 32 C columns of C += A B, all of k; with `Part`, rows of B have the first `part` of 32
/// columns.
template <int R, int C, bool Part>
inline void add_listed_tile(int k, int part, const Bf16* a, std::ptrdiff_t lda, ListedBf16& b,
                            float* c, std::ptrdiff_t ldc) {
  __m512 acc[R][C][2];
#pragma GCC unroll 4
  for (std::ptrdiff_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (std::ptrdiff_t v = 0; v < C; ++v) acc[r][v][0] = acc[r][v][1] = _mm512_setzero_ps();
  }
  const auto load = [&](const Bf16* row, std::ptrdiff_t v) __attribute__((always_inline)) {
    if constexpr (Part) return load_first(row, part);
    return load_bits(row + v * kPairLanes);
  };
  for (std::ptrdiff_t i = 0; i < k; i += 2) {
    const bool both = i + 1 < k;
    const Bf16* row0 = b.row(i);
    const Bf16* row1 = b.row(both ? i + 1 : i);
    b.ask(2 * kPairLanes * C);
    __m512i low[C];
    __m512i high[C];
#pragma GCC unroll 2
    for (std::ptrdiff_t v = 0; v < C; ++v) {
      const __m512i x = load(row0, v);
      const __m512i y = both ? load(row1, v) : _mm512_setzero_si512();
      low[v] = _mm512_unpacklo_epi16(x, y);  // per 128 bits the lower four columns
      high[v] = _mm512_unpackhi_epi16(x, y);
    }
#pragma GCC unroll 4
    for (std::ptrdiff_t r = 0; r < R; ++r) {
      int pair;
      __builtin_memcpy(&pair, a + r * lda + i, sizeof(pair));
      const __m512i ra = _mm512_set1_epi32(pair);
#pragma GCC unroll 2
      for (std::ptrdiff_t v = 0; v < C; ++v) {
        acc[r][v][0] = dot_pairs(acc[r][v][0], ra, low[v]);
        acc[r][v][1] = dot_pairs(acc[r][v][1], ra, high[v]);
      }
    }
  }
#pragma GCC unroll 4
  for (std::ptrdiff_t r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (std::ptrdiff_t v = 0; v < C; ++v) {
      add_unpacked(acc[r][v][0], acc[r][v][1], c + r * ldc + v * kPairLanes);
    }
  }
}

/// tile(RowGroup<R>, first row, rows of B) for all rows. The first asks for what comes next.
template <class Tile>
inline void for_few_rows(int rows, ListedBf16& b, const Tile& tile) {
  Ahead nothing;
  ListedBf16 silent{b.first, b.at, nothing};
  for_row_groups(rows, [&](auto group, std::ptrdiff_t r) { tile(group, r, r == 0 ? b : silent); });
}

struct VectorReading {
  static constexpr int kRows = 1;

  static void row_products(int rows, int cols, int k, const Bf16* a, std::ptrdiff_t lda,
                           const Bf16* b, const std::int64_t* at, float factor, float* c,
                           std::ptrdiff_t ldc, Ahead& ahead) {
    // Some keys by all rows, then the next: they stay in the first-level cache, of which rows of
    // many heads apart use few sets.
    constexpr int kKeys = 16;
    ListedBf16 listed{b, at, ahead};
    for (std::ptrdiff_t j = 0; j < cols; j += kKeys, listed.at += kKeys) {
      const int keys = cols - j < kKeys ? cols - static_cast<int>(j) : kKeys;
      for_few_rows(rows, listed, [&]<int R>(RowGroup<R>, std::ptrdiff_t r, ListedBf16& from) {
        row_products_of<R>(keys, k, a + r * lda, lda, from, factor, c + r * ldc + j, ldc);
      });
    }
  }

  static void add_listed_rows(int rows, int cols, int k, const Bf16* a, std::ptrdiff_t lda,
                              const Bf16* b, const std::int64_t* at, float* c, std::ptrdiff_t ldc,
                              Ahead& ahead) {
    ListedBf16 listed{b, at, ahead};
    for_columns(cols, listed, [&]<int C, bool Part>(Columns<C, Part>, int part, std::ptrdiff_t j) {
      for_few_rows(rows, listed, [&]<int R>(RowGroup<R>, std::ptrdiff_t r, ListedBf16& from) {
        add_listed_tile<R, C, Part>(k, part, a + r * lda, lda, from, c + r * ldc + j, ldc);
      });
    });
  }
};

}  // namespace
}  // namespace tilewise::cpu
