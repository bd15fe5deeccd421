/// Passes over one row of scores, for the implementations that keep S x S matrices in memory. One
/// table of functions per instruction set, each compiled in its own unit with its own flags.
#pragma once

#include <cstdint>

#include "cpu/micro/isa.h"

namespace tilewise::cpu {

/// The inputs of dropout's bits for a row of P, as in DropoutMask. CONTRACT 13.
struct DropoutRow {
  std::uint32_t key0, key1, offset;
  std::uint32_t head, query;  ///< b * Hq + h, and i
  std::int64_t first_key;     ///< j of the row's first element
  std::uint64_t threshold;
  float scale;
};

/// Rows are n floats at any address. "seen" entries of P are those that are not 0: a hidden key's
/// other values, whatever they are, do not enter a sum.
struct RowPasses {
  bool (*all_finite)(std::int64_t n, const float* x);
  /// The largest value, NaN left aside; -inf for an empty row.
  float (*highest)(std::int64_t n, const float* x);
  float (*sum)(std::int64_t n, const float* x);
  /// y = factor * x; x and y may be the same row.
  void (*scale)(std::int64_t n, float factor, const float* x, float* y);
  /// Rows of n floats: y[r] = row_factor[r] * factor * x[r]; row_factor may be null (1).
  void (*scale_rows)(int rows, std::int64_t n, const float* row_factor, float factor,
                     const float* x, std::int64_t ld_x, float* y, std::int64_t ld_y);
  /// x = exp(x - shift).
  void (*exp)(std::int64_t n, float shift, float* x);
  /// Sum of p * dp over seen entries: delta. (B2)
  float (*dot_seen)(std::int64_t n, const float* p, const float* dp);
  /// dp = p * (dp - delta) where seen, else 0. (B5)
  void (*score_gradient)(std::int64_t n, const float* p, float delta, float* dp);
  /// y += factor * x.
  void (*add_scaled)(std::int64_t n, float factor, const float* x, float* y);

  // Several of the above in one walk, for `fused`.

  /// x *= factor; the largest of the new values.
  float (*scale_highest)(std::int64_t n, float factor, float* x);
  /// y = exp(x - shift); the sum of y. x and y may be the same row.
  float (*exp_sum)(std::int64_t n, float shift, const float* x, float* y);
  /// score_gradient(), then times factor.
  void (*score_gradient_scaled)(std::int64_t n, const float* p, float delta, float factor,
                                float* dp);

  // Half types, as elements.h has them one by one.

  void (*widen_bfloat16)(std::int64_t n, const std::uint16_t* in, float* out);
  void (*narrow_bfloat16)(std::int64_t n, const float* in, std::uint16_t* out);
  void (*widen_float16)(std::int64_t n, const std::uint16_t* in, float* out);
  void (*narrow_float16)(std::int64_t n, const float* in, std::uint16_t* out);

  /// x *= keep / (1 - p); what is not kept becomes 0, whatever it was. (F13)
  void (*drop)(std::int64_t n, const DropoutRow& row, float* x);
};

/// The table of an instruction set; the CPU must have it to call through it.
const RowPasses& row_passes(Isa isa);

// One per unit: row_passes_scalar.cpp, row_passes_avx2.cpp, row_passes_avx512.cpp.
const RowPasses& row_passes_scalar();
const RowPasses& row_passes_avx2();
const RowPasses& row_passes_avx512();

}  // namespace tilewise::cpu
