/// The micro-kernels, written once over a vector type V and compiled per instruction set.
/// Everything is in an unnamed namespace: no function of an AVX-512 unit can be linked into
/// another.
///
/// V: Float (a vector), kLanes, kRows and kVectors (the register tile), kSumVectors
/// (of a tile whose sum is one of sums), zero, set, load (of each
/// storage type), store,
/// add, sub, mul, fma, max, min, round, sum, highest, exp and exp2 (of any x),
/// exp2_of_finite, for polynomials zero_below (y, or 0 where x is less than a bound) and scale2 (x
/// * 2^n for integral n in a Float, also where 2^n alone would not be a normal number).
#pragma once

#include "cpu/micro/ahead_impl.h"
#include "cpu/micro/few_rows_impl.h"
#include "cpu/micro/products_impl.h"

namespace tilewise::cpu {
namespace {

// 1 + r q(r), minimax: e^r on |r| <= ln 2 / 2, relative error 3e-9, and 2^r on |r| <= 1 /
// 2, 1.6e-8.
constexpr int kTerms = 6;
constexpr float kExpPolynomial[kTerms] = {1.0F,           0.49999993432F, 0.16666520399F,
                                          0.04166838679F, 0.00836874513F, 0.00138145401F};
constexpr float kExp2Polynomial[kTerms] = {0.693147182F,   0.240226477F,   0.0555033237F,
                                           0.00961843692F, 0.00133988739F, 0.00015353362F};
constexpr float kLog2E = 1.44269504F;
constexpr float kLn2High = 0.693359375F;  // 9 bits: n * kLn2High is exact
constexpr float kLn2Low = -2.12194440e-4F;
constexpr float kExpLowest = -104.0F;   // exp of anything below is 0 in float32
constexpr float kExp2Lowest = -150.0F;  // and 2 to it

/// 2^n (1 + r q(r)), n integral.
template <class V>
inline typename V::Float scaled_polynomial(const float (&q)[kTerms], typename V::Float n,
                                           typename V::Float r) {
  auto y = V::set(q[kTerms - 1]);
#pragma GCC unroll 5
  for (int i = kTerms - 2; i >= 0; --i) y = V::fma(y, r, V::set(q[i]));
  y = V::fma(y, r, V::set(1.0F));
  return V::scale2(y, n);
}

// For the sets without a table of powers in a register. Hidden scores are -inf, and Intel's CPUs
// take some hundred cycles for a product that underflows: below the last float32 nothing is worked
// out, and the result is 0. NaN stays NaN, and what a float32 cannot hold becomes infinite.

/// exp(x): x = n ln 2 + r, ln 2 in two parts (Cody and Waite 1980).
template <class V>
inline typename V::Float exp_by_polynomial(typename V::Float x) {
  // NOTE: the operand order lets NaN through: min gives its second operand for NaN.
  const auto seen = V::min(V::set(128.0F), V::zero_below(x, kExpLowest, x));
  const auto n = V::round(V::mul(seen, V::set(kLog2E)));
  auto r = V::fma(n, V::set(-kLn2High), seen);
  r = V::fma(n, V::set(-kLn2Low), r);
  return V::zero_below(x, kExpLowest, scaled_polynomial<V>(kExpPolynomial, n, r));
}

template <class V>
inline typename V::Float exp2_by_polynomial(typename V::Float x) {
  const auto seen = V::min(V::set(130.0F), V::zero_below(x, kExp2Lowest, x));
  const auto n = V::round(seen);
  return V::zero_below(x, kExp2Lowest, scaled_polynomial<V>(kExp2Polynomial, n, V::sub(seen, n)));
}

// Rows of B: one behind the other, or anywhere.
template <class B>
struct Strided {
  const B* first;
  std::ptrdiff_t ld;
  inline const B* row(int j) const { return first + j * ld; }
  inline void ask(int /*elems*/) {}
};
template <class B>
struct Listed {
  const B* first;
  const std::int64_t* at;
  Ahead& ahead;
  inline const B* row(int j) const { return first + at[j]; }
  inline void ask(int elems) { cpu::ask(ahead, elems * std::ptrdiff_t{sizeof(B)}); }
};

/// R rows of A by all rows of B, which are read in the order of memory.
template <class V, int R, class Rows>
inline void row_products_of(int cols, int k, const float* a, std::ptrdiff_t lda, Rows& b, float* c,
                            std::ptrdiff_t ldc) {
  for (int j = 0; j < cols; ++j) {
    const auto* row = b.row(j);
    b.ask(k);
    typename V::Float acc[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) acc[r] = V::zero();
#pragma GCC unroll 4
    for (int i = 0; i < k; i += V::kLanes) {
      const auto rb = V::load(row + i);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) acc[r] = V::fma(V::load(a + r * lda + i), rb, acc[r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) c[r * ldc + j] = V::sum(acc[r]);
  }
}

template <class V, class Rows>
inline void products_with_rows(int rows, int cols, int k, const float* a, std::ptrdiff_t lda,
                               Rows b, float* c, std::ptrdiff_t ldc) {
  for_row_groups(rows, [&]<int R>(RowGroup<R>, int r) {
    row_products_of<V, R>(cols, k, a + r * lda, lda, b, c + r * ldc, ldc);
  });
}

template <class V, class B>
void row_products(int rows, int cols, int k, const float* a, std::ptrdiff_t lda, const void* b,
                  std::ptrdiff_t ldb, float* c, std::ptrdiff_t ldc) {
  const Strided<B> strided{static_cast<const B*>(b), ldb};
  products_with_rows<V>(rows, cols, k, a, lda, strided, c, ldc);
}
template <class V, class B>
void listed_products(int rows, int cols, int k, const float* a, std::ptrdiff_t lda, const void* b,
                     const std::int64_t* at, float* c, std::ptrdiff_t ldc, Ahead& ahead) {
  products_with_rows<V>(rows, cols, k, a, lda, Listed<B>{static_cast<const B*>(b), at, ahead}, c,
                        ldc);
}

/// R rows x C vectors of C += A B, all of k.
template <class V, int R, int C, class B>
inline void add_listed_tile(int k, const float* a, std::ptrdiff_t lda, Listed<B>& b, float* c,
                            std::ptrdiff_t ldc) {
  typename V::Float acc[R][C];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < C; ++v) acc[r][v] = V::zero();
  }
  for (int i = 0; i < k; ++i) {
    const B* row = b.row(i);
    b.ask(C * V::kLanes);
    typename V::Float rb[C];
#pragma GCC unroll 8
    for (int v = 0; v < C; ++v) rb[v] = V::load(row + v * V::kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const auto ra = V::set(a[r * lda + i]);
#pragma GCC unroll 8
      for (int v = 0; v < C; ++v) acc[r][v] = V::fma(ra, rb[v], acc[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < C; ++v) {
      float* at = c + r * ldc + v * V::kLanes;
      V::store(at, V::add(V::load(at), acc[r][v]));
    }
  }
}

template <class V, int C, class B>
inline void add_listed_panel(int rows, int k, const float* a, std::ptrdiff_t lda, Listed<B>& b,
                             float* c, std::ptrdiff_t ldc) {
  for_row_groups(rows, [&]<int R>(RowGroup<R>, int r) {
    add_listed_tile<V, R, C>(k, a + r * lda, lda, b, c + r * ldc, ldc);
  });
}

template <class V, class B>
void add_listed_rows(int rows, int cols, int k, const float* a, std::ptrdiff_t lda, const void* b,
                     const std::int64_t* at, float* c, std::ptrdiff_t ldc, Ahead& ahead) {
  constexpr int kWide = V::kVectors * V::kLanes;
  Listed<B> listed{static_cast<const B*>(b), at, ahead};
  int j = 0;
  for (; j + kWide <= cols; j += kWide, listed.first += kWide) {
    add_listed_panel<V, V::kVectors>(rows, k, a, lda, listed, c + j, ldc);
  }
  for (; j < cols; j += V::kLanes, listed.first += V::kLanes) {
    add_listed_panel<V, 1>(rows, k, a, lda, listed, c + j, ldc);
  }
}

template <class V, class B>
void add_weighted_rows(int rows, int cols, int k, const float* a, std::ptrdiff_t lda, const void* b,
                       std::ptrdiff_t ldb, float* c, std::ptrdiff_t ldc) {
  gemm<V>(rows, cols, k, a, lda, 1, static_cast<const B*>(b), ldb, c, ldc, true);
}

/// R rows at once: their maxima, sums and exponentials do not wait for each other. Exp: of a logit
/// less the maximum.
template <class V, int R, typename V::Float (*Exp)(typename V::Float)>
inline void softmax_rows(int cols, float* s, std::ptrdiff_t ld, float* m, float* l,
                         float* rescale) {
  constexpr float kNothing = -__builtin_inff();
  typename V::Float high[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) high[r] = V::load(s + r * ld);
  for (int c = V::kLanes; c < cols; c += V::kLanes) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) high[r] = V::max(high[r], V::load(s + r * ld + c));
  }
  float m_new[R];
  float shift[R];
  typename V::Float negative_shift[R];
  typename V::Float sum[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const float row_high = V::highest(high[r]);
    m_new[r] = row_high > m[r] ? row_high : m[r];       // (F7)
    shift[r] = m_new[r] == kNothing ? 0.0F : m_new[r];  // -inf - -inf would be NaN
    negative_shift[r] = V::set(-shift[r]);
    sum[r] = V::zero();
  }
  for (int c = 0; c < cols; c += V::kLanes) {  // (F8) P
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      float* at = s + r * ld + c;
      const auto p = Exp(V::add(V::load(at), negative_shift[r]));
      V::store(at, p);
      sum[r] = V::add(sum[r], p);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    rescale[r] = 1.0F;
    if (m_new[r] != m[r]) {
      float factor[V::kLanes];
      V::store(factor, Exp(V::set(m[r] - shift[r])));
      rescale[r] = factor[0];
      m[r] = m_new[r];
    }
    l[r] = rescale[r] * l[r] + V::sum(sum[r]);  // (F9)
  }
}

template <class V, typename V::Float (*Exp)(typename V::Float)>
void softmax_step(int rows, int cols, float* s, std::ptrdiff_t ld, float* m, float* l,
                  float* rescale) {
  constexpr int kTogether = 4;
  int r = 0;
  for (; r + kTogether <= rows; r += kTogether) {
    softmax_rows<V, kTogether, Exp>(cols, s + r * ld, ld, m + r, l + r, rescale + r);
  }
  for (; r < rows; ++r) softmax_rows<V, 1, Exp>(cols, s + r * ld, ld, m + r, l + r, rescale + r);
}

template <class V>
bool first_maxima(int rows, int cols, const float* s, std::ptrdiff_t ld, float* m) {
  constexpr float kNothing = -__builtin_inff();
  bool all = true;
  for (int r = 0; r < rows; ++r, s += ld) {
    if (m[r] != kNothing) continue;
    auto high = V::load(s);
    for (int c = V::kLanes; c < cols; c += V::kLanes) high = V::max(high, V::load(s + c));
    m[r] = V::highest(high);
    all = all && m[r] != kNothing;
  }
  return all;
}

template <class V>
void weights(int rows, int cols, float* s, std::ptrdiff_t ld, const float* m, float* sums) {
  constexpr float kNothing = -__builtin_inff();
  for (int r = 0; r < rows; ++r, s += ld, sums += V::kLanes) {
    const auto shift = V::set(m[r] == kNothing ? 0.0F : m[r]);  // -inf - -inf would be NaN
    auto sum = V::load(sums);
    for (int c = 0; c < cols; c += V::kLanes) {
      const auto p = V::exp2(V::sub(V::load(s + c), shift));
      V::store(s + c, p);
      sum = V::add(sum, p);
    }
    V::store(sums, sum);
  }
}

template <class V>
void take_sums(int rows, float* sums, float* l) {
  for (int r = 0; r < rows; ++r, sums += V::kLanes) {
    l[r] += V::sum(V::load(sums));
    V::store(sums, V::zero());
  }
}

template <class V>
bool all_finite(std::int64_t count, const float* x) {
  auto nothing = V::zero();  // x - x is 0, or NaN
  std::int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) {
    const auto value = V::load(x + i);
    nothing = V::add(nothing, V::sub(value, value));
  }
  float rest = V::sum(nothing);
  for (; i < count; ++i) rest += x[i] - x[i];
  return rest == 0.0F;
}

template <class V, typename V::Float (*Exp)(typename V::Float)>
void probabilities(int rows, int cols, float* s, std::ptrdiff_t ld, const float* lse,
                   const float* lse_low) {
  const auto none = V::zero();
  for (int r = 0; r < rows; ++r, s += ld) {
    const auto high = V::set(lse[r]);
    const auto low = V::set(lse_low[r]);
    for (int c = 0; c < cols; c += V::kLanes) {
      const auto x = V::sub(V::sub(V::load(s + c), high), low);
      V::store(s + c, Exp(V::min(none, x)));
    }
  }
}

template <class V>
void add_row_dots(int rows, int cols, const float* x, const float* y, std::ptrdiff_t ld,
                  const float* rescale, float* acc) {
  for (int r = 0; r < rows; ++r, x += ld, y += ld) {
    auto sum = V::zero();
    for (int c = 0; c < cols; c += V::kLanes) sum = V::fma(V::load(x + c), V::load(y + c), sum);
    acc[r] = rescale[r] * acc[r] + V::sum(sum);
  }
}

template <class V>
void score_gradient(int rows, int cols, const float* p, float* dp, std::ptrdiff_t ld,
                    const float* delta, float factor) {
  const auto f = V::set(factor);
  for (int r = 0; r < rows; ++r, p += ld, dp += ld) {
    const auto row_delta = V::set(delta[r]);
    for (int c = 0; c < cols; c += V::kLanes) {
      const auto difference = V::sub(V::load(dp + c), row_delta);
      V::store(dp + c, V::mul(V::mul(V::load(p + c), f), difference));
    }
  }
}

template <class V>
void scale_rows(int rows, int cols, float* x, std::ptrdiff_t ld, const float* factor) {
  for (int r = 0; r < rows; ++r, x += ld) {
    if (factor[r] == 1.0F) continue;
    const auto f = V::set(factor[r]);
    for (int c = 0; c < cols; c += V::kLanes) V::store(x + c, V::mul(V::load(x + c), f));
  }
}

/// A square of whole vectors, with V's shuffles. With `Part` it has only `rows` rows, then zeros.
template <class V, bool Part>
__attribute__((always_inline)) inline void transpose_square(int rows, const float* src,
                                                            std::ptrdiff_t src_ld, float* dst,
                                                            std::ptrdiff_t dst_ld,
                                                            typename V::Float factor) {
  constexpr int kLanes = V::kLanes;
  typename V::Float x[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    x[i] = !Part || i < rows ? V::load(src + i * src_ld) : V::zero();
    if (!Part) __builtin_prefetch(src + (kLanes + i) * src_ld);  // past the end: a hint, no read
  }
  V::transpose(x);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) V::store(dst + i * dst_ld, V::mul(x[i], factor));
}

/// In squares; columns beyond whole vectors one by one.
template <class V>
void transpose(int rows, int cols, const float* src, std::ptrdiff_t src_ld, float* dst,
               std::ptrdiff_t dst_ld, float factor) {
  constexpr int kLanes = V::kLanes;
  const int whole_cols = cols / kLanes * kLanes;
  const auto f = V::set(factor);
  int r = 0;
  for (; r + kLanes <= rows; r += kLanes) {
    for (int c = 0; c < whole_cols; c += kLanes) {
      transpose_square<V, false>(kLanes, src + r * src_ld + c, src_ld, dst + c * dst_ld + r, dst_ld,
                                 f);
    }
  }
  const int left = rows - r;
  for (int c = 0; left > 0 && c < whole_cols; c += kLanes) {
    transpose_square<V, true>(left, src + r * src_ld + c, src_ld, dst + c * dst_ld + r, dst_ld, f);
  }
  const int padded = left > 0 ? r + kLanes : r;
  for (int c = whole_cols; c < cols; ++c) {
    for (int i = 0; i < padded; ++i) {
      dst[c * dst_ld + i] = i < rows ? src[i * src_ld + c] * factor : 0.0F;
    }
  }
}

/// y = Exp(x).
template <class V, typename V::Float (*Exp)(typename V::Float)>
void exp_all(int count, const float* x, float* y) {
  float in[V::kLanes];
  float out[V::kLanes];
  for (int i = 0; i < count; i += V::kLanes) {
    const int n = count - i < V::kLanes ? count - i : V::kLanes;
    for (int j = 0; j < V::kLanes; ++j) in[j] = j < n ? x[i + j] : 0.0F;
    V::store(out, Exp(V::load(in)));
    for (int j = 0; j < n; ++j) y[i + j] = out[j];
  }
}

template <class V>
constexpr Micro make_micro(Isa isa) {
  return {
      .isa = isa,
      .lanes = V::kLanes,
      .panel_cols = V::kVectors * V::kLanes,
      .gemm = gemm<V, float>,
      .scores = scores<V>,
      .score_weights = score_weights<V>,
      .score_probabilities = score_probabilities<V>,
      .score_gradients = score_gradients<V>,
      .weights = weights<V>,
      .first_maxima = first_maxima<V>,
      .take_sums = take_sums<V>,
      .all_finite = all_finite<V>,
      .row_products = {row_products<V, float>, row_products<V, Bfloat16>, row_products<V, Float16>},
      .add_weighted_rows = {add_weighted_rows<V, float>, add_weighted_rows<V, Bfloat16>,
                            add_weighted_rows<V, Float16>},
      .listed_products = {listed_products<V, float>, listed_products<V, Bfloat16>,
                          listed_products<V, Float16>},
      .add_listed_rows = {add_listed_rows<V, float>, add_listed_rows<V, Bfloat16>,
                          add_listed_rows<V, Float16>},
      .softmax_step = softmax_step<V, V::exp>,
      .softmax_step_log2 = softmax_step<V, V::exp2>,
      .probabilities = probabilities<V, V::exp>,
      .probabilities_log2 = probabilities<V, V::exp2>,
      .add_row_dots = add_row_dots<V>,
      .score_gradient = score_gradient<V>,
      .scale_rows = scale_rows<V>,
      .transpose = transpose<V>,
      .exp = exp_all<V, V::exp>,
      .exp2 = exp_all<V, V::exp2>};
}

}  // namespace
}  // namespace tilewise::cpu
