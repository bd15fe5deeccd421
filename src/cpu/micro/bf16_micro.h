/// Bf16Micro: what a set with bfloat16 dot products provides to the bfloat16 flash kernels, beside
/// Micro. Products take bfloat16 and sum in float32; everything between two products is float32.
///
/// Layouts: A is row-major; B is in pairs, element (i, j) at b[i / 2 * ldb + 2 * j + i % 2], so
/// that a 32-bit lane holds the two factors of one step. C is row-major float32. Buffers of A and C
/// have whole tiles of 16 rows, columns are a multiple of 16, the inner length of 32; what pads the
/// inner length is 0 on one side and finite on the other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/micro/isa.h"
#include "cpu/micro/micro.h"

namespace tilewise::cpu {

using Bf16 = std::uint16_t;  ///< a bfloat16's bits

/// P and dS of a tile as factors of the products of backward.
struct GradientTile {
  Bf16 *p_pairs, *ds_pairs;  ///< B: rows are the inner length
  Bf16* ds_rows;             ///< A: keys are the inner length
  std::ptrdiff_t ld_pairs, ld_rows;
};

inline constexpr int kAttendRows = 32;
// Upper limit of |V| for P relative to an earlier maximum: a block's P V is below 2^104, and
// float32 holds the sum of 2^24 blocks.
inline constexpr float kKeptValue = 0x1p84F;

/// A block of keys for some query rows in one pass: S (F1), the softmax step (F7)-(F9), O (F10).
struct AttendBlock {
  int rows;  ///< 17 to kAttendRows
  int keys;  ///< a multiple of 32
  int dim, dim_v;
  const Bf16* q;
  std::ptrdiff_t ld_q;
  const Bf16* k;  ///< B, panels of 32 keys
  const Bf16* v;  ///< B
  std::ptrdiff_t ld_v;
  float to_log2;  ///< as in softmax_step
  // What a row sees of the keys, and the panels that all rows see.
  const int *seen_begin, *seen_end;
  int all_begin, all_end;
  float* m;     ///< -inf in all rows: set from some of the keys, even where the answer is false
  float* sums;  ///< 16 a row, in all l
  Bf16* p;      ///< rows x ld_p, for P
  std::ptrdiff_t ld_p;
  float* o;
  std::ptrdiff_t ld_o;
};

struct Bf16Micro {
  /// Before the first and after the last product of a task on its thread: tile configuration.
  void (*enter)();
  void (*leave)();

  /// C (rows x cols) = or += A (rows x k) B (k x cols). Rows up to the next multiple of 16 are
  /// written too.
  void (*gemm)(int rows, int cols, int k, const Bf16* a, std::ptrdiff_t lda, const Bf16* b,
               std::ptrdiff_t ldb, float* c, std::ptrdiff_t ldc, bool accumulate);

  /// src (rows x cols, both even) as B: pairs of rows. Returns the largest |element|, where NaN is
  /// beyond infinity.
  Bf16 (*pack_pairs)(int rows, int cols, const Bf16* src, std::ptrdiff_t ld, Bf16* dst,
                     std::ptrdiff_t ldb);
  /// src^T as B: pairs of columns. rows is a multiple of 16, cols of 32.
  void (*pack_transposed_pairs)(int rows, int cols, const Bf16* src, std::ptrdiff_t ld, Bf16* dst,
                                std::ptrdiff_t ldb);
  /// dst = src^T as A. rows is a multiple of 32, cols of 16.
  void (*transpose)(int rows, int cols, const Bf16* src, std::ptrdiff_t ld, Bf16* dst,
                    std::ptrdiff_t dst_ld);

  /// One online-softmax step of rows of scores, natural logits times 1 / (to_log2 * ln 2):
  /// (F7)-(F9) as Micro's, with P rounded into `p`. With `keep_m`, m is left behind while the sum
  /// of P over the columns stays below 2^20: P and l are then relative to an earlier maximum, and V
  /// must be at most kKeptValue. cols is a multiple of 32.
  void (*softmax_step)(int rows, int cols, const float* s, std::ptrdiff_t ld, float to_log2,
                       bool keep_m, float* m, float* l, float* rescale, Bf16* p,
                       std::ptrdiff_t ldp);
  /// O += P V and sums += P with P relative to m as it is; false, with O and sums as they were,
  /// when a row's sum of P is not below what softmax_step keeps m for, or m is not moderate. V is
  /// at most kKeptValue. Null where products and exponentials share their units.
  bool (*attend)(const AttendBlock& block);
  // For a few rows of A and B that is read once, where it lies: row j begins at element at[j].

  /// 1: A of row_products is row-major. 16: as many rows at a time are pack_transposed_pairs() of
  /// them, ldb = 32, and A of add_listed_rows is read up to a multiple of 16 rows and 32 columns.
  int reading_rows;
  /// C[r, j] = factor * (row r of A . row j of B). Rows of A are zero from k on, up to a multiple
  /// of 32; those of B are read to k. C is written up to a multiple of 16 columns.
  void (*row_products)(int rows, int cols, int k, const Bf16* a, std::ptrdiff_t lda, const Bf16* b,
                       const std::int64_t* at, float factor, float* c, std::ptrdiff_t ldc,
                       Ahead& ahead);
  /// C += A B over k. A is zero from column k on, up to a multiple of 32; C has columns up to a
  /// multiple of 32.
  void (*add_listed_rows)(int rows, int cols, int k, const Bf16* a, std::ptrdiff_t lda,
                          const Bf16* b, const std::int64_t* at, float* c, std::ptrdiff_t ldc,
                          Ahead& ahead);
  /// p = 0 where keep is 0. cols is a multiple of 32.
  void (*keep)(int rows, int cols, const float* keep, std::ptrdiff_t ld, Bf16* p,
               std::ptrdiff_t ldp);
  /// Backward's tile of scores q.k and of dP, rows x cols (a multiple of 32): (B1), (B5)
  ///   P = exp2(min(S to_log2 - lse_log2, 0)), dS = factor P (dP - delta),
  /// rounded. P in pairs of rows, dS in rows and in pairs; pairs are 0 up to a multiple of 32 rows.
  void (*gradient_step)(int rows, int cols, const float* s, const float* dp, std::ptrdiff_t ld,
                        float to_log2, const float* lse_log2, const float* delta, float factor,
                        const GradientTile& out);
  /// The same rounding of P and dS from elsewhere.
  void (*round_gradient)(int rows, int cols, const float* p, const float* ds, std::ptrdiff_t ld,
                         const GradientTile& out);
  /// x -= x rounded: what rounding leaves.
  void (*remainder)(int rows, int cols, float* x, std::ptrdiff_t ld);
  /// out = rows of x times factor[r], rounded. cols is a multiple of 16.
  void (*store_rows)(int rows, int cols, const float* x, std::ptrdiff_t ld, const float* factor,
                     Bf16* out, std::ptrdiff_t out_ld);
  /// x *= factor.
  void (*scale)(int rows, int cols, float* x, std::ptrdiff_t ld, float factor);
};

/// The table of Isa::avx512bf16 or Isa::amx; the CPU must have it, or emulate_amx() be true.
const Bf16Micro& bf16_micro(Isa isa);

/// Products of bfloat16 that vdpbf16ps makes in the time of one float32 multiply-add: 2 where it is
/// as fast an instruction, 1 where it is half as fast. Measured here, in some 30 us.
double bf16_product_rate_avx512bf16();

// One per unit: bf16_avx512bf16.cpp, bf16_amx.cpp, bf16_emulated_avx512bf16.cpp.
const Bf16Micro& bf16_micro_avx512bf16();
const Bf16Micro& bf16_micro_amx();
const Bf16Micro& bf16_micro_emulated();

}  // namespace tilewise::cpu
