/// The words that expression_text.h prints: types, numbers, operations of cuda/tile/expression.cuh.
#pragma once

#include <cstdint>
#include <string>

#include "expression/program.h"

namespace tilewise::cuda {

const char* type_text(expression::Type type);
/// The text of a 32-bit integer.
std::string integer_text(std::int64_t value);
/// The shortest text of a float.
std::string real_text(double value);
/// The name of the expression::Stored value.
const char* stored_text(DType dtype);
/// The exponent of a power of two, -1 for another number.
int log2_of(std::int64_t value);

/// An operation whose operands, of the type `operands`, have these texts. Neither a leaf, a load
/// nor a quotient.
std::string expression_operation(const expression::Node& node, expression::Type operands,
                                 const std::string& a, const std::string& b, const std::string& c);

}  // namespace tilewise::cuda
