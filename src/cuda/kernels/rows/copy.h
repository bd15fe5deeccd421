/// copy_rows on the host. See rows/README.md.
#pragma once

#include "tilewise/tensor.h"

namespace tilewise::cuda {

/// Starts copying the elements of `from` to those of `to`: (B, H, S, D) of one shape and type, any
/// strides.
void copy_elements(const Tensor& from, const Tensor& to, void* stream);

/// The same of dO: a row whose `lse`, (B, H, S), is -inf becomes 0, whatever it holds. CONTRACT 3.
void copy_seen_rows(const Tensor& from, const Tensor& to, const Tensor& lse, void* stream);

}  // namespace tilewise::cuda
