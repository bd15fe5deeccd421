/// Reading and writing tensor elements of any type as double. Not shared with the CPU kernels: what
/// they are compared with must not lean on their conversions, and double must be rounded to 16 bits
/// in one step.
#pragma once

#include <cstdint>
#include <vector>

#include "tilewise/tensor.h"

namespace tilewise::reference {

/// The element at an offset (in elements) from the tensor's data, exactly; bool and integers too.
double load(const Tensor& tensor, std::int64_t offset);

/// Rounds once, to nearest even, to the tensor's type, and writes.
void store(const Tensor& tensor, std::int64_t offset, double value);

/// The value that `dtype` holds for `value`: rounded once, to nearest even, overflow to infinity.
double round_to(DType dtype, double value);

/// `value` as a factor of a TF32 product: eleven significant bits, nearest even, float32's range.
double round_to_tf32(double value);

/// All elements in row-major order of the tensor's sizes.
std::vector<double> to_double(const Tensor& tensor);

/// Writes all elements in row-major order, each rounded once.
void from_double(const Tensor& tensor, const std::vector<double>& values);

}  // namespace tilewise::reference
