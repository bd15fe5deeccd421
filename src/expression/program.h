/// Program: a score function or a mask as a flat, typed list of operations. The lowering of
/// include/tilewise/expression.h makes it; every evaluator (the float64 interpreter, the CPU's
/// tiles, CUDA text, intervals) reads it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tilewise/tensor.h"

namespace tilewise::expression {

/// What a node's value is. Kernels hold an integer in 32 bits and a real in float32; the
/// interpreter uses 64 bits for both.
enum class Type : std::uint8_t { boolean, integer, real };

enum class Op : std::uint8_t {
  // Leaves. query and key are i and j: local to a packed sequence, logical under paging; head is
  // the query head; score is the logit after scale, cap, bias and ALiBi, before the mask.
  score,
  batch,
  head,
  query,
  key,
  query_length,
  key_length,
  lane,      ///< the index that the enclosing any, all or sum runs over
  constant,  ///< Node::real for a real, Node::integer for an integer or a boolean
  /// captures[Node::capture][args...], one integer for each axis. A negative index counts from the
  /// axis' end; one that is still outside is cut to the axis.
  load,
  // Arithmetic on two integers or two reals. divide is real; floor_divide and modulo floor as in
  // Python, on either type. Division of an integer by 0 and a shift outside 0 .. 31 give any value
  // and never trap; integers wrap.
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  negate,
  absolute,
  minimum,  ///< of reals, a NaN on either side gives NaN
  maximum,
  power,  ///< of reals
  // Comparisons of two integers or two reals.
  equal,
  not_equal,
  less,
  less_equal,
  // Booleans.
  logical_and,
  logical_or,
  logical_xor,
  logical_not,
  // Bits of integers.
  bit_and,
  bit_or,
  bit_xor,
  bit_not,
  shift_left,
  shift_right,  ///< arithmetic
  where,        ///< args: condition, value if true, value if false
  // Functions of a real. gelu is the exact one (erf).
  exp,
  exp2,
  log,
  sqrt,
  rsqrt,
  tanh,
  sigmoid,
  sin,
  cos,
  atan,
  erf,
  relu,
  silu,
  gelu,
  floor,
  ceil,
  round,  ///< half to even
  sign,
  // Casts. to_integer truncates; to_boolean is != 0.
  to_boolean,
  to_integer,
  to_real,
  // Reductions of args[0] over lane = 0 .. Node::integer - 1. They do not nest.
  any,
  all,
  sum,
};

/// The inputs of a value. kDiagonal means i - j, and never occurs with kQuery or kKey.
/// Lengths differ by batch.
enum Depends : std::uint8_t {
  kUniform = 0,
  kBatch = 1,
  kHead = 2,
  kQuery = 4,
  kKey = 8,
  kDiagonal = 16,
  kScore = 32,
  kLane = 64,
};

struct Node {
  Op op = Op::constant;
  Type type = Type::real;
  std::uint8_t depends = kUniform;     ///< bits of Depends
  std::uint8_t count = 0;              ///< arguments in use
  std::array<std::int32_t, 4> args{};  ///< earlier nodes
  std::int32_t capture = -1;           ///< of load
  double real = 0.0;                   ///< of a real constant
  std::int64_t integer = 0;            ///< of another constant; the extent of a reduction
  bool operator==(const Node&) const = default;
};

/// A captured tensor in a program. Its values, sizes and strides belong to a call.
struct CaptureType {
  DType dtype = DType::float32;
  int rank = 1;  ///< 1 to 4
  bool operator==(const CaptureType&) const = default;
};

struct Program {
  std::vector<Node> nodes;  ///< arguments before their users; equal nodes once
  std::int32_t result = -1;
  std::vector<CaptureType> captures;
  std::string text;  ///< canonical: equal texts are equal programs. The key of compiled kernels
};

/// A program with the tensors that it captures, in the order of Program::captures. A tensor without
/// axes comes as one of shape (1), read at 0.
struct Function {
  std::shared_ptr<const Program> program;
  std::vector<Tensor> captures;
  bool defined() const { return program != nullptr; }
};

/// The contribution of a pair to the gradient of one element of a capture.
struct CaptureTerm {
  std::int32_t capture = -1;
  std::array<std::int32_t, 4> index{};  ///< nodes of the gradient's program
  std::int32_t value = -1;              ///< node: times the gradient of the function's result
  std::int32_t lanes = 1;               ///< value and index are summed over lane = 0 .. lanes - 1
};

/// The derivative of a score function, in reverse, with torch's conventions at kinks. `program`
/// holds the nodes of the function too, so that common parts are computed once; program.result is
/// the function's result. Where a pair is hidden its gradients are 0, whatever the nodes say.
struct Gradient {
  Program program;
  std::int32_t of_score = -1;  ///< node: d result / d score
  std::vector<CaptureTerm> terms;
};

}  // namespace tilewise::expression
