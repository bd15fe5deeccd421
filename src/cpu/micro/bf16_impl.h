/// The bfloat16 micro-kernels, written once for units with AVX512_BF16 and compiled per backend of
/// products. Everything is in an unnamed namespace, as in micro_impl.h.
#pragma once

#include <immintrin.h>

#include "cpu/micro/avx512_lanes.h"
#include "cpu/micro/bf16_micro.h"

namespace tilewise::cpu {
namespace {

// 2^f on [0, 1): 1 + f q(f), minimax, relative error 2.9e-6. P is rounded to 2^-9; LSE needs 1e-5.
constexpr float kExp2Polynomial[] = {0.6930448412895203F, 0.2412802129983902F, 0.0522424690425396F,
                                     0.013426687568426132F};
// P may be relative to an earlier maximum while a row's sum over a block stays below this: far from
// overflow, and bfloat16 rounds relatively.
constexpr float kKeptSum = 0x1p20F;

/// 2^t; 0 for -inf, NaN stays NaN.
inline __m512 exp2_vector(__m512 t) {
  const __m512 f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // -inf: 0
  __m512 y = _mm512_set1_ps(kExp2Polynomial[3]);
#pragma GCC unroll 3
  for (std::ptrdiff_t i = 2; i >= 0; --i)
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(kExp2Polynomial[i]));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(y, t);  // y 2^floor(t)
}

/// Two vectors of a row, rounded: 32 bfloat16 in order.
inline __m512i round_row(__m512 first, __m512 second) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
}

inline __m512i load_bits(const Bf16* p) { return _mm512_loadu_si512(p); }
inline void store_bits(Bf16* p, __m512i x) { _mm512_storeu_si512(p, x); }

/// Words of two rows side by side: `low` gets columns 0 to 15, `high` 16 to 31.
inline void interleave(__m512i row0, __m512i row1, __m512i& low, __m512i& high) {
  const __m512i a = _mm512_unpacklo_epi16(row0, row1);  // per 128 bits: the lower four columns
  const __m512i b = _mm512_unpackhi_epi16(row0, row1);
  low = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), b);
  high = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), b);
}

inline void store_pairs(__m512i row0, __m512i row1, Bf16* at) {
  __m512i low;
  __m512i high;
  interleave(row0, row1, low, high);
  store_bits(at, low);
  store_bits(at + 32, high);
}

Bf16 pack_pairs(int rows, int cols, const Bf16* src, std::ptrdiff_t ld, Bf16* dst,
                std::ptrdiff_t ldb) {
  // Bits of |x| order as their values do.
  constexpr Bf16 kMagnitude = 0x7FFF;
  const __m512i magnitude = _mm512_set1_epi16(kMagnitude);
  __m512i high = _mm512_setzero_si512();
  Bf16 largest = 0;
  const auto look_at = [&](Bf16 x) {
    const Bf16 bits = x & kMagnitude;
    if (bits > largest) largest = bits;
  };
  for (std::ptrdiff_t r = 0; r < rows; r += 2, src += 2 * ld, dst += ldb) {
    std::ptrdiff_t c = 0;
    for (; c + 32 <= cols; c += 32) {
      const __m512i row0 = load_bits(src + c);
      const __m512i row1 = load_bits(src + ld + c);
      high = _mm512_max_epu16(high, _mm512_and_si512(row0, magnitude));
      high = _mm512_max_epu16(high, _mm512_and_si512(row1, magnitude));
      store_pairs(row0, row1, dst + 2 * c);
    }
    for (; c < cols; ++c) {
      dst[2 * c] = src[c];
      dst[2 * c + 1] = src[ld + c];
      look_at(src[c]);
      look_at(src[ld + c]);
    }
  }
  Bf16 lanes[32];
  store_bits(lanes, high);
  for (const Bf16 x : lanes) look_at(x);
  return largest;
}

void pack_transposed_pairs(int rows, int cols, const Bf16* src, std::ptrdiff_t ld, Bf16* dst,
                           std::ptrdiff_t ldb) {
  for (std::ptrdiff_t r = 0; r < rows; r += 16) {
    for (std::ptrdiff_t c = 0; c < cols; c += 32) {
      __m512i x[16];
#pragma GCC unroll 16
      for (std::ptrdiff_t i = 0; i < 16; ++i) x[i] = load_bits(src + (r + i) * ld + c);
      transpose_lanes(x);
#pragma GCC unroll 16
      for (std::ptrdiff_t i = 0; i < 16; ++i) store_bits(dst + (c / 2 + i) * ldb + 2 * r, x[i]);
    }
  }
}

void transpose(int rows, int cols, const Bf16* src, std::ptrdiff_t ld, Bf16* dst,
               std::ptrdiff_t dst_ld) {
  for (std::ptrdiff_t r = 0; r < rows; r += 32) {
    for (std::ptrdiff_t c = 0; c < cols; c += 16) {
      __m512i x[16];  // pairs of rows, 16 columns
#pragma GCC unroll 16
      for (std::ptrdiff_t i = 0; i < 16; ++i) {
        const Bf16* at = src + (r + 2 * i) * ld + c;
        const __m512i even =
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
        const __m512i odd =
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + ld)));
        x[i] = _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
      }
      transpose_lanes(x);
#pragma GCC unroll 16
      for (std::ptrdiff_t i = 0; i < 16; ++i) store_bits(dst + (c + i) * dst_ld + r, x[i]);
    }
  }
}

/// P, their sums in `sum`, of R rows relative to m. Exact: (s - m) to_log2, for huge m; else one
/// multiply-add, off by 2^-25 of m to_log2, the same for the whole row.
template <int R, bool Exact>
inline void exponentials(int cols, const float* s, std::ptrdiff_t ld, float to_log2, const float* m,
                         Bf16* p, std::ptrdiff_t ldp, __m512* sum) {
  const __m512 factor = _mm512_set1_ps(to_log2);
  __m512 shift[R];
#pragma GCC unroll 4
  for (std::ptrdiff_t r = 0; r < R; ++r) shift[r] = _mm512_set1_ps(Exact ? m[r] : -m[r] * to_log2);
  const auto exponent = [&](const float* at, std::ptrdiff_t r) __attribute__((always_inline)) {
    const __m512 x = _mm512_loadu_ps(at);
    if constexpr (Exact) return _mm512_mul_ps(_mm512_sub_ps(x, shift[r]), factor);
    return _mm512_fmadd_ps(x, factor, shift[r]);
  };
  for (std::ptrdiff_t c = 0; c < cols; c += 32) {  // (F8) P
#pragma GCC unroll 4
    for (std::ptrdiff_t r = 0; r < R; ++r) {
      const float* at = s + r * ld + c;
      const __m512 p0 = exp2_vector(exponent(at, r));
      const __m512 p1 = exp2_vector(exponent(at + 16, r));
      sum[r] = _mm512_add_ps(sum[r], _mm512_add_ps(p0, p1));
      store_bits(p + r * ldp + c, round_row(p0, p1));
    }
  }
}

/// True for maxima that exponents are exact enough relative to in one multiply-add.
inline bool moderate(float m, float to_log2) {
  constexpr float kHugeLog2 = 1024.0F;
  return __builtin_fabsf(m) * to_log2 <= kHugeLog2;
}

/// R rows at once: their maxima, sums and exponentials do not wait for each other.
template <int R>
inline void softmax_rows(int cols, const float* s, std::ptrdiff_t ld, float to_log2, bool keep_m,
                         float* m, float* l, float* rescale, Bf16* p, std::ptrdiff_t ldp) {
  constexpr float kNothing = -__builtin_inff();
  __m512 sum[R];
  // With an earlier maximum first: a sum that stays far from overflow needs no other. m = -inf and
  // NaN do not pass.
  bool kept = keep_m;
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    kept &= moderate(m[r], to_log2);
    sum[r] = _mm512_setzero_ps();
  }
  if (kept) {
    exponentials<R, false>(cols, s, ld, to_log2, m, p, ldp, sum);
    float total[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      total[r] = _mm512_reduce_add_ps(sum[r]);
      kept &= total[r] <= kKeptSum;
    }
    if (kept) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        rescale[r] = 1.0F;
        l[r] += total[r];
      }
      return;
    }
  }
  __m512 high[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) high[r] = _mm512_set1_ps(kNothing);
  for (std::ptrdiff_t c = 0; c < cols; c += 16) {
    // NOTE: the operand order lets NaN pass by: max gives its second operand for NaN.
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) high[r] = _mm512_max_ps(_mm512_loadu_ps(s + r * ld + c), high[r]);
  }
  float start[R];
  bool huge = false;
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const float row_high = _mm512_reduce_max_ps(high[r]);
    rescale[r] = 1.0F;
    if (row_high > m[r]) {                                              // (F7)
      const __m512 fall = _mm512_set1_ps((m[r] - row_high) * to_log2);  // -inf at first
      rescale[r] = _mm512_cvtss_f32(exp2_vector(fall));
      m[r] = row_high;
    }
    start[r] = m[r] == kNothing ? 0.0F : m[r];  // -inf - -inf would be NaN
    huge |= !moderate(start[r], to_log2);
    sum[r] = _mm512_setzero_ps();
  }
  if (huge) {
    exponentials<R, true>(cols, s, ld, to_log2, start, p, ldp, sum);
  } else {
    exponentials<R, false>(cols, s, ld, to_log2, start, p, ldp, sum);
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) l[r] = rescale[r] * l[r] + _mm512_reduce_add_ps(sum[r]);  // (F9)
}

void softmax_step(int rows, int cols, const float* s, std::ptrdiff_t ld, float to_log2, bool keep_m,
                  float* m, float* l, float* rescale, Bf16* p, std::ptrdiff_t ldp) {
  std::ptrdiff_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    softmax_rows<4>(cols, s + r * ld, ld, to_log2, keep_m, m + r, l + r, rescale + r, p + r * ldp,
                    ldp);
  }
  for (; r < rows; ++r) {
    softmax_rows<1>(cols, s + r * ld, ld, to_log2, keep_m, m + r, l + r, rescale + r, p + r * ldp,
                    ldp);
  }
}

void keep(int rows, int cols, const float* factor, std::ptrdiff_t ld, Bf16* p, std::ptrdiff_t ldp) {
  const __m512 none = _mm512_setzero_ps();
  for (std::ptrdiff_t r = 0; r < rows; ++r, factor += ld, p += ldp) {
    for (std::ptrdiff_t c = 0; c < cols; c += 16) {
      const __mmask16 kept = _mm512_cmp_ps_mask(_mm512_loadu_ps(factor + c), none, _CMP_NEQ_OQ);
      auto* at = reinterpret_cast<__m256i*>(p + c);
      _mm256_storeu_si256(at, _mm256_maskz_mov_epi16(kept, _mm256_loadu_si256(at)));
    }
  }
}

/// value(r, c, p, ds): 32 rounded entries of P and of dS of row r from column c on.
template <class Value>
inline void round_tile(int rows, int cols, const GradientTile& out, const Value& value) {
  const __m512i none = _mm512_setzero_si512();
  for (std::ptrdiff_t r = 0; r < rows; r += 2) {
    const bool both = r + 1 < rows;
    Bf16* p_pairs = out.p_pairs + r / 2 * out.ld_pairs;
    Bf16* ds_pairs = out.ds_pairs + r / 2 * out.ld_pairs;
    Bf16* ds_rows = out.ds_rows + r * out.ld_rows;
    for (std::ptrdiff_t c = 0; c < cols; c += 32) {
      __m512i p0;
      __m512i p1 = none;
      __m512i ds0;
      __m512i ds1 = none;
      value(r, c, p0, ds0);
      if (both) value(r + 1, c, p1, ds1);
      store_bits(ds_rows + c, ds0);
      if (both) store_bits(ds_rows + out.ld_rows + c, ds1);
      store_pairs(p0, p1, p_pairs + 2 * c);
      store_pairs(ds0, ds1, ds_pairs + 2 * c);
    }
  }
  for (std::ptrdiff_t r = rows + rows % 2; r % 32 != 0; r += 2) {
    for (std::ptrdiff_t c = 0; c < cols + cols; c += 32) {
      store_bits(out.p_pairs + r / 2 * out.ld_pairs + c, none);
      store_bits(out.ds_pairs + r / 2 * out.ld_pairs + c, none);
    }
  }
}

void gradient_step(int rows, int cols, const float* s, const float* dp, std::ptrdiff_t ld,
                   float to_log2, const float* lse_log2, const float* delta, float factor,
                   const GradientTile& out) {
  const __m512 to_exponent = _mm512_set1_ps(to_log2);
  const __m512 ds_factor = _mm512_set1_ps(factor);
  const __m512 none = _mm512_setzero_ps();
  round_tile(
      rows, cols, out,
      [&](std::ptrdiff_t r, std::ptrdiff_t c, __m512i & p, __m512i & ds)
          __attribute__((always_inline)) {
            const __m512 lse = _mm512_set1_ps(lse_log2[r]);
            const __m512 row_delta = _mm512_set1_ps(delta[r]);
            const float* at = s + r * ld + c;
            const float* dp_at = dp + r * ld + c;
            // NOTE: the operand order lets NaN through: min gives its second operand for NaN.
            const __m512 p0 = exp2_vector(
                _mm512_min_ps(none, _mm512_fmsub_ps(_mm512_loadu_ps(at), to_exponent, lse)));
            const __m512 p1 = exp2_vector(
                _mm512_min_ps(none, _mm512_fmsub_ps(_mm512_loadu_ps(at + 16), to_exponent, lse)));
            const __m512 ds0 = _mm512_mul_ps(_mm512_mul_ps(p0, ds_factor),
                                             _mm512_sub_ps(_mm512_loadu_ps(dp_at), row_delta));
            const __m512 ds1 = _mm512_mul_ps(_mm512_mul_ps(p1, ds_factor),
                                             _mm512_sub_ps(_mm512_loadu_ps(dp_at + 16), row_delta));
            p = round_row(p0, p1);
            ds = round_row(ds0, ds1);
          });
}

void round_gradient(int rows, int cols, const float* p, const float* ds, std::ptrdiff_t ld,
                    const GradientTile& out) {
  round_tile(
      rows, cols, out,
      [&](std::ptrdiff_t r, std::ptrdiff_t c, __m512i & p_bits, __m512i & ds_bits)
          __attribute__((always_inline)) {
            const float* p_at = p + r * ld + c;
            const float* ds_at = ds + r * ld + c;
            p_bits = round_row(_mm512_loadu_ps(p_at), _mm512_loadu_ps(p_at + 16));
            ds_bits = round_row(_mm512_loadu_ps(ds_at), _mm512_loadu_ps(ds_at + 16));
          });
}

void remainder(int rows, int cols, float* x, std::ptrdiff_t ld) {
  for (std::ptrdiff_t r = 0; r < rows; ++r, x += ld) {
    for (std::ptrdiff_t c = 0; c < cols; c += 16) {
      const __m512 value = _mm512_loadu_ps(x + c);
      const auto bits = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value));
      const __m512i rounded = _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
      _mm512_storeu_ps(x + c, _mm512_sub_ps(value, _mm512_castsi512_ps(rounded)));
    }
  }
}

void store_rows(int rows, int cols, const float* x, std::ptrdiff_t ld, const float* factor,
                Bf16* out, std::ptrdiff_t out_ld) {
  for (int r = 0; r < rows; ++r, x += ld, out += out_ld) {
    const __m512 f = _mm512_set1_ps(factor[r]);
    for (std::ptrdiff_t c = 0; c < cols; c += 16) {
      const __m512 value = _mm512_mul_ps(_mm512_loadu_ps(x + c), f);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + c),
                          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
    }
  }
}

void scale(int rows, int cols, float* x, std::ptrdiff_t ld, float factor) {
  const __m512 f = _mm512_set1_ps(factor);
  for (std::ptrdiff_t r = 0; r < rows; ++r, x += ld) {
    for (std::ptrdiff_t c = 0; c < cols; c += 16) {
      _mm512_storeu_ps(x + c, _mm512_mul_ps(_mm512_loadu_ps(x + c), f));
    }
  }
}

template <class Products, class Reading>
constexpr Bf16Micro make_bf16_micro(bool (*attend)(const AttendBlock&) = nullptr) {
  return {.enter = Products::enter,
          .leave = Products::leave,
          .gemm = Products::gemm,
          .pack_pairs = pack_pairs,
          .pack_transposed_pairs = pack_transposed_pairs,
          .transpose = transpose,
          .softmax_step = softmax_step,
          .attend = attend,
          .reading_rows = Reading::kRows,
          .row_products = Reading::row_products,
          .add_listed_rows = Reading::add_listed_rows,
          .keep = keep,
          .gradient_step = gradient_step,
          .round_gradient = round_gradient,
          .remainder = remainder,
          .store_rows = store_rows,
          .scale = scale};
}

}  // namespace
}  // namespace tilewise::cpu
