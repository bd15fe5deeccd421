/// What an instruction set provides to the evaluator of expressions: one function for each
/// operation on strips of values in cache, compiled in a unit of its own with its own flags.
///
/// A value takes 32 bits: a real is a float, an integer an int32 that wraps, a boolean 0 or -1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/micro/isa.h"
#include "expression/program.h"

namespace tilewise::cpu {

/// A strip of values: vector v of row r is at data + r * row + v * col, in values. col is `lanes`,
/// or 0 where a row has one value, which then stands in all lanes of a vector.
struct StripIn {
  const float* data = nullptr;
  std::ptrdiff_t row = 0, col = 0;
  std::ptrdiff_t lane = 0;  ///< between the strips of an expression's lanes
};

struct StripOut {
  float* data = nullptr;
  std::ptrdiff_t row = 0;
};

/// A captured tensor as a load reads it.
struct CaptureView {
  const void* data = nullptr;
  DType dtype = DType::float32;
  int rank = 1;
  std::int64_t sizes[4] = {};
  std::int64_t strides[4] = {};
};

/// An operation on `rows` rows of `vectors` vectors. `out` may be one of `in`.
struct StripOp {
  int rows = 0, vectors = 0;
  int lanes = 1;  ///< of an expression's reduction; see dot
  StripIn in[4];
  StripOut out;
  const CaptureView* capture = nullptr;  ///< of a load
};

using StripFunction = void (*)(const StripOp& op);

struct ExpressionOps {
  int lanes;
  /// The function of a node whose arguments (where: whose values) are of type `operands`. Null for
  /// leaves and reductions.
  StripFunction (*function)(expression::Op op, expression::Type operands);
  /// out = in[0] at the element that the integers in[0] .. in[rank - 1] name. An index is wrapped
  /// as an index of the tensor is, and never reads outside.
  StripFunction load;
  /// out[c] = the place in `capture` of the element that a row's integers index[0] .. [rank - 1]
  /// name at column c, for c < count: wrapped as load does.
  void (*locate)(const CaptureView& capture, const StripIn* index, int row, int count,
                 std::int64_t* out);
  /// Elements at key j0, j0 + stride, ... of n: as load gives them, where the index counts keys.
  void (*load_row)(const CaptureView& capture, std::int64_t offset, std::int64_t stride,
                   std::int64_t n, float* out);
  /// out = the sum of in[0] * in[1] over the lanes, in order.
  StripFunction dot;
  /// out = -inf where the boolean in[1] is not true, else in[0].
  StripFunction hide;
  /// out = in[0] * in[1] where in[2] is not 0, else 0, be in[1] infinite or NaN.
  StripFunction multiply_seen;
};

/// The table of an instruction set; the CPU must have it to call through it.
const ExpressionOps& expression_ops(Isa isa);

// One per unit: expression_ops_scalar.cpp, expression_ops_avx2.cpp, expression_ops_avx512.cpp.
const ExpressionOps& expression_ops_scalar();
const ExpressionOps& expression_ops_avx2();
const ExpressionOps& expression_ops_avx512();

}  // namespace tilewise::cpu
