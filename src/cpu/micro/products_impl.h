/// The matrix products of micro_impl.h, over its vector type V: register tiles, and what becomes of
/// their sums before they go to memory.
#pragma once

#include "cpu/micro/micro.h"

namespace tilewise::cpu {
namespace {

// What becomes of a row of a register tile: row(r, at, acc) has the sums of C vectors of row r of
// the product, whose place in C is `at`.

/// C = or += the sums.
template <class V>
struct Store {
  bool accumulate;

  template <int C>
  inline void row(int /*r*/, float* at, const typename V::Float (&acc)[C]) const {
#pragma GCC unroll 8
    for (int v = 0; v < C; ++v, at += V::kLanes) {
      // Added last: the sum over k stays one of its own, which rounds less, and begins at once.
      V::store(at, accumulate ? V::add(V::load(at), acc[v]) : acc[v]);
    }
  }
};

/// P = 2^(S - m), m finite, and its sums. (F8), (F9)
template <class V>
struct Weights {
  const float* m;
  float* sums;

  template <int C>
  inline void row(int r, float* at, const typename V::Float (&acc)[C]) const {
    const auto shift = V::set(m[r]);
    auto sum = V::load(sums + r * V::kLanes);
#pragma GCC unroll 8
    for (int v = 0; v < C; ++v, at += V::kLanes) {
      const auto p = V::exp2_of_finite(V::sub(acc[v], shift));
      V::store(at, p);
      sum = V::add(sum, p);
    }
    V::store(sums + r * V::kLanes, sum);
  }
};

/// P = 2^min(S - LSE, 0). (B1)
template <class V>
struct Probabilities {
  const float* lse;
  const float* lse_low;

  template <int C>
  inline void row(int r, float* at, const typename V::Float (&acc)[C]) const {
    const auto high = V::set(lse[r]);
    const auto low = V::set(lse_low[r]);
#pragma GCC unroll 8
    for (int v = 0; v < C; ++v, at += V::kLanes) {
      const auto x = V::min(V::zero(), V::sub(V::sub(acc[v], high), low));
      V::store(at, V::exp2(x));
    }
  }
};

/// dS = factor P (dP - delta). (B5)
template <class V>
struct ScoreGradient {
  std::ptrdiff_t p_from_c;  ///< from an element of C to P's
  const float* delta;
  float factor;

  template <int C>
  inline void row(int r, float* at, const typename V::Float (&acc)[C]) const {
    const auto d = V::set(delta[r]);
    const auto f = V::set(factor);
#pragma GCC unroll 8
    for (int v = 0; v < C; ++v, at += V::kLanes) {
      V::store(at, V::mul(V::mul(f, V::load(at + p_from_c)), V::sub(acc[v], d)));
    }
  }
};

/// acc = A B of R rows x C vectors, over k.
template <class V, int R, int C, class B>
__attribute__((always_inline)) inline void multiply(typename V::Float (&acc)[R][C], int k,
                                                    const float* a, std::ptrdiff_t a_row,
                                                    std::ptrdiff_t a_col, const B* b,
                                                    std::ptrdiff_t ldb) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < C; ++v) {
      acc[r][v] = V::zero();
    }
  }
  for (int i = 0; i < k; ++i) {
    typename V::Float rb[C];
#pragma GCC unroll 8
    for (int v = 0; v < C; ++v) rb[v] = V::load(b + i * ldb + v * V::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto ra = V::set(a[r * a_row + i * a_col]);
#pragma GCC unroll 8
      for (int v = 0; v < C; ++v) acc[r][v] = V::fma(ra, rb[v], acc[r][v]);
    }
  }
}

/// One register tile: R rows x C vectors of C, all of k; the first row is row r0 of the product.
/// With `Sums`, the sum over k is one of sums of at most kSumTerms terms.
template <class V, int R, int C, bool Sums, class B, class Finish>
inline void gemm_tile(int r0, int k, const float* a, std::ptrdiff_t a_row, std::ptrdiff_t a_col,
                      const B* b, std::ptrdiff_t ldb, float* c, std::ptrdiff_t ldc,
                      const Finish& finish) {
  typename V::Float acc[R][C];
  multiply<V, R, C>(acc, Sums && k > kSumTerms ? kSumTerms : k, a, a_row, a_col, b, ldb);
  for (int i = kSumTerms; Sums && i < k; i += kSumTerms) {
    typename V::Float next[R][C];
    multiply<V, R, C>(next, k - i < kSumTerms ? k - i : kSumTerms, a + i * a_col, a_row, a_col,
                      b + i * ldb, ldb);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < C; ++v) acc[r][v] = V::add(acc[r][v], next[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) finish.row(r0 + r, c + r * ldc, acc[r]);
}

/// All rows of a column panel of C vectors: full register tiles, then one of what is left.
template <class V, int C, bool Sums, class B, class Finish>
inline void gemm_panel(int rows, int k, const float* a, std::ptrdiff_t a_row, std::ptrdiff_t a_col,
                       const B* b, std::ptrdiff_t ldb, float* c, std::ptrdiff_t ldc,
                       const Finish& finish) {
  int r = 0;
  for (; r + V::kRows <= rows; r += V::kRows) {
    gemm_tile<V, V::kRows, C, Sums>(r, k, a + r * a_row, a_row, a_col, b, ldb, c + r * ldc, ldc,
                                    finish);
  }
  a += r * a_row;
  c += r * ldc;
  switch (rows - r) {
    case 5:
      return gemm_tile<V, 5, C, Sums>(r, k, a, a_row, a_col, b, ldb, c, ldc, finish);
    case 4:
      return gemm_tile<V, 4, C, Sums>(r, k, a, a_row, a_col, b, ldb, c, ldc, finish);
    case 3:
      return gemm_tile<V, 3, C, Sums>(r, k, a, a_row, a_col, b, ldb, c, ldc, finish);
    case 2:
      return gemm_tile<V, 2, C, Sums>(r, k, a, a_row, a_col, b, ldb, c, ldc, finish);
    case 1:
      return gemm_tile<V, 1, C, Sums>(r, k, a, a_row, a_col, b, ldb, c, ldc, finish);
    default:
      return;
  }
}

template <class V, bool Sums, class B, class Finish>
inline void product(int rows, int cols, int k, const float* a, std::ptrdiff_t a_row,
                    std::ptrdiff_t a_col, const B* b, std::ptrdiff_t ldb, float* c,
                    std::ptrdiff_t ldc, const Finish& finish) {
  constexpr int kVectors = Sums ? V::kSumVectors : V::kVectors;
  constexpr int kWide = kVectors * V::kLanes;
  int j = 0;
  // One row leaves registers for twice the columns: B is read in longer runs.
  for (; !Sums && rows == 1 && j + 2 * kWide <= cols; j += 2 * kWide) {
    gemm_tile<V, 1, 2 * kVectors, Sums>(0, k, a, a_row, a_col, b + j, ldb, c + j, ldc, finish);
  }
  for (; j + kWide <= cols; j += kWide) {
    gemm_panel<V, kVectors, Sums>(rows, k, a, a_row, a_col, b + j, ldb, c + j, ldc, finish);
  }
  switch ((cols - j) / V::kLanes) {
    case 3:
      return gemm_panel<V, 3, Sums>(rows, k, a, a_row, a_col, b + j, ldb, c + j, ldc, finish);
    case 2:
      return gemm_panel<V, 2, Sums>(rows, k, a, a_row, a_col, b + j, ldb, c + j, ldc, finish);
    case 1:
      return gemm_panel<V, 1, Sums>(rows, k, a, a_row, a_col, b + j, ldb, c + j, ldc, finish);
    default:
      return;
  }
}

template <class V, class B>
void gemm(int rows, int cols, int k, const float* a, std::ptrdiff_t a_row, std::ptrdiff_t a_col,
          const B* b, std::ptrdiff_t ldb, float* c, std::ptrdiff_t ldc, bool accumulate) {
  product<V, false>(rows, cols, k, a, a_row, a_col, b, ldb, c, ldc, Store<V>{accumulate});
}

/// A panel's product, in sums of at most kSumTerms terms.
template <class V, class Finish>
inline void panel_product(const PanelProduct& x, const Finish& finish) {
  constexpr std::ptrdiff_t kPanel = V::kVectors * V::kLanes;
  if (x.k <= kSumTerms) {
    return product<V, false>(x.rows, x.cols, x.k, x.a, x.lda, 1, x.panel, kPanel, x.c, x.ldc,
                             finish);
  }
  product<V, true>(x.rows, x.cols, x.k, x.a, x.lda, 1, x.panel, kPanel, x.c, x.ldc, finish);
}

template <class V>
void scores(const PanelProduct& x) {
  panel_product<V>(x, Store<V>{false});
}
template <class V>
void score_weights(const PanelProduct& x, const float* m, float* sums) {
  panel_product<V>(x, Weights<V>{m, sums});
}
template <class V>
void score_probabilities(const PanelProduct& x, const float* lse, const float* lse_low) {
  panel_product<V>(x, Probabilities<V>{lse, lse_low});
}
template <class V>
void score_gradients(const PanelProduct& x, const float* p, const float* delta, float factor) {
  panel_product<V>(x, ScoreGradient<V>{p - x.c, delta, factor});
}

}  // namespace
}  // namespace tilewise::cpu
