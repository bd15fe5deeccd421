/// Micro: what an instruction set provides to the flash kernels. One table of functions per set,
/// each compiled in its own unit with its own flags; everything above is compiled once for any CPU.
///
/// Buffers are float32 in memory of ours: leading dimensions and columns are multiples of `lanes`,
/// so that whole vectors may be read and written up to the padded column count.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/micro/isa.h"
#include "tilewise/tensor.h"

namespace tilewise::cpu {

/// Half types as they lie in memory.
struct Bfloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

/// Index of a storage type in Micro's tables.
constexpr int storage_of(DType dtype) {
  return dtype == DType::float32 ? 0 : dtype == DType::bfloat16 ? 1 : 2;
}

/// C (rows x cols) = A B over k, in sums of at most kSumTerms terms: half the error of one sum at
/// dim 128. A and C are row-major, B is a panel of pack_transposed(); cols is a multiple of lanes.
struct PanelProduct {
  int rows, cols, k;
  const float* a;
  std::ptrdiff_t lda;
  const float* panel;
  float* c;
  std::ptrdiff_t ldc;
};
inline constexpr int kSumTerms = 64;

/// Rows of K or V that are read later. Products ask for them in order while they run, for as much
/// as they read of B.
struct Ahead {
  const char* data = nullptr;  ///< row 0
  const std::int64_t* at = nullptr;
  std::int64_t element_bytes = 0;
  std::int64_t bytes = 0;  ///< of each row
  int count = 0;

  int row = 0;  ///< the next to begin with
  const char* next = nullptr;
  std::int64_t left = 0;  ///< bytes of the row before, from `next` on
};

struct Micro {
  Isa isa;
  int lanes;       ///< floats in a vector
  int panel_cols;  ///< columns of a packed panel of K^T or V^T: the widest register tile

  /// C (rows x cols) = or += A (rows x k) B (k x cols). Element (r, i) of A is a[r * a_row + i *
  /// a_col]; B and C are row-major. cols is a multiple of lanes.
  void (*gemm)(int rows, int cols, int k, const float* a, std::ptrdiff_t a_row,
               std::ptrdiff_t a_col, const float* b, std::ptrdiff_t ldb, float* c,
               std::ptrdiff_t ldc, bool accumulate);

  // Products with a panel of pack_transposed(), scores or dP, and what becomes of them before they
  // go to memory: on Zen 4 a store takes the slots of one to two multiply-adds.

  void (*scores)(const PanelProduct& x);
  /// P = 2^(S - m), m finite, and sums += P, `lanes` sums a row. (F8), (F9) P that a float32 cannot
  /// hold becomes infinite or NaN.
  void (*score_weights)(const PanelProduct& x, const float* m, float* sums);
  /// P = 2^min(S - LSE, 0) with LSE = lse + lse_low in units of ln 2. (B1)
  void (*score_probabilities)(const PanelProduct& x, const float* lse, const float* lse_low);
  /// dS = factor P (dP - delta), P with C's leading dimension. (B5)
  void (*score_gradients)(const PanelProduct& x, const float* p, const float* delta, float factor);

  // For rows whose m is known before their scores: nothing rescales.

  /// score_weights() of scores in memory, in place: hidden ones are -inf, and so is m of a row that
  /// has seen nothing; their P is 0.
  void (*weights)(int rows, int cols, float* s, std::ptrdiff_t ld, const float* m, float* sums);
  /// m of the rows where it is -inf becomes the largest score; true if it is -inf nowhere then.
  bool (*first_maxima)(int rows, int cols, const float* s, std::ptrdiff_t ld, float* m);
  /// l += the sum of a row's sums, which become 0.
  void (*take_sums)(int rows, float* sums, float* l);
  /// True if no element is infinite or NaN.
  bool (*all_finite)(std::int64_t count, const float* x);

  // For B that is read once where it lies, in float32, bfloat16 or float16 (index: storage_of), and
  // few rows of A.

  /// C[r, j] = row r of A . row j of B, both `k` long, a multiple of lanes.
  void (*row_products[3])(int rows, int cols, int k, const float* a, std::ptrdiff_t lda,
                          const void* b, std::ptrdiff_t ldb, float* c, std::ptrdiff_t ldc);
  /// C += A B; cols is a multiple of lanes.
  void (*add_weighted_rows[3])(int rows, int cols, int k, const float* a, std::ptrdiff_t lda,
                               const void* b, std::ptrdiff_t ldb, float* c, std::ptrdiff_t ldc);

  /// The same of rows of B anywhere: row j begins at element at[j].
  void (*listed_products[3])(int rows, int cols, int k, const float* a, std::ptrdiff_t lda,
                             const void* b, const std::int64_t* at, float* c, std::ptrdiff_t ldc,
                             Ahead& ahead);
  void (*add_listed_rows[3])(int rows, int cols, int k, const float* a, std::ptrdiff_t lda,
                             const void* b, const std::int64_t* at, float* c, std::ptrdiff_t ldc,
                             Ahead& ahead);

  /// One online-softmax step on a strip of logits, row by row: (F7)-(F9)
  ///   m_new = max(m, rowmax(S)), rescale = exp(m - m_new), P = exp(S - m_new) in place of S,
  ///   l = rescale * l + rowsum(P).
  /// A row that has seen nothing visible keeps m = -inf, and its P is 0.
  void (*softmax_step)(int rows, int cols, float* s, std::ptrdiff_t ld, float* m, float* l,
                       float* rescale);
  /// The same of logits and m in units of ln 2.
  void (*softmax_step_log2)(int rows, int cols, float* s, std::ptrdiff_t ld, float* m, float* l,
                            float* rescale);

  /// P = exp(min(S - LSE, 0)) in place of S, with LSE = lse + lse_low in two floats. (B1); lse[r] =
  /// +inf gives 0.
  void (*probabilities)(int rows, int cols, float* s, std::ptrdiff_t ld, const float* lse,
                        const float* lse_low);

  /// The same of logits and LSE in units of ln 2.
  void (*probabilities_log2)(int rows, int cols, float* s, std::ptrdiff_t ld, const float* lse,
                             const float* lse_low);

  /// acc[r] = rescale[r] * acc[r] + sum over columns of x * y.
  void (*add_row_dots)(int rows, int cols, const float* x, const float* y, std::ptrdiff_t ld,
                       const float* rescale, float* acc);

  /// dS = factor * P * (dP - delta) in place of dP. (B5)
  void (*score_gradient)(int rows, int cols, const float* p, float* dp, std::ptrdiff_t ld,
                         const float* delta, float factor);

  /// Rows of x times factor[r]; rows whose factor is 1 are left alone.
  void (*scale_rows)(int rows, int cols, float* x, std::ptrdiff_t ld, const float* factor);

  /// dst[c * dst_ld + r] = src[r * src_ld + c] * factor, and 0 for the rows that fill up the last
  /// vector.
  void (*transpose)(int rows, int cols, const float* src, std::ptrdiff_t src_ld, float* dst,
                    std::ptrdiff_t dst_ld, float factor);

  /// y = exp(x): at most 2 ulp on [-87, 0]; exp(0) = 1, exp(-inf) = 0, NaN stays NaN. For the
  /// tests.
  void (*exp)(int count, const float* x, float* y);
  /// y = 2^x for x <= 0: at most 2 ulp on [-126, 0], and the same values. For the tests.
  void (*exp2)(int count, const float* x, float* y);
};

/// The table of an instruction set; the CPU must have it to call through it.
const Micro& micro(Isa isa);

// One per unit: micro_scalar.cpp, micro_avx2.cpp, micro_avx512.cpp.
const Micro& micro_scalar();
const Micro& micro_avx2();
const Micro& micro_avx512();

}  // namespace tilewise::cpu
