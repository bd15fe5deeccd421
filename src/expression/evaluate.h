/// One operation on values: what constant folding and the interpreter share.
#pragma once

#include <cstdint>
#include <span>

#include "expression/program.h"

namespace tilewise::expression {

/// `real` of a real; `integer` of an integer, of 32 bits, or of a boolean, 0 or 1.
struct Value {
  double real = 0.0;
  std::int64_t integer = 0;
};

/// The value of `op` for operands of the type `operands` (of where: of its values). Neither a leaf
/// nor a load nor a reduction.
Value apply(Op op, Type operands, std::span<const Value> args);
/// The same of constants of up to 33 bits: an integer that needs more than 32 bits is not wrapped.
Value fold(Op op, Type operands, std::span<const Value> args);

/// The low 32 bits, as a signed number.
std::int64_t wrap32(std::int64_t value);

}  // namespace tilewise::expression
