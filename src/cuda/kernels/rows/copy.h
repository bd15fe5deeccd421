/// copy_rows on the host. See rows/README.md.
#pragma once

#include "tilewise/tensor.h"

namespace tilewise::cuda {

/// Starts copying the elements of `from` to those of `to`: (B, H, S, D) of one shape and type, any
/// strides.
void copy_elements(const Tensor& from, const Tensor& to, void* stream);

}  // namespace tilewise::cuda
