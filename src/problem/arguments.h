/// Small judges of single arguments.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "tilewise/spec.h"
#include "tilewise/tensor.h"

namespace tilewise::arguments {

/// Throws InvalidArgument: "k is float32 (2, 4, 8, 64) on cpu: <expected>".
[[noreturn]] void fail(const char* name, const Tensor& value, const std::string& expected);
[[noreturn]] void fail_value(const char* name, const std::string& value,
                             const std::string& expected);

/// The shortest text of a few digits: 0.5, 1e+300, nan.
std::string number_text(double value);

/// "(2, 4, 8, 64)".
std::string shape_text(const std::int64_t* sizes, int rank);

/// At most Tensor::kMaxElems elements, and strides that span no more. Sizes are >= 0.
void require_countable(const char* name, const Tensor& t);

/// Rank 4 as it is, rank 3 (B, S, D) as (B, 1, S, D).
Tensor canonical(const char* name, const Tensor& t);

/// Whether kernels can divide by a softcap in float32, and multiply it by log2 e.
bool is_softcap(double value);

void require_device(const char* name, const Tensor& t, Device device);

/// A tensor with elements has memory. A GPU reads elements only at multiples of their size.
void require_data(const char* name, const Tensor& t);
void require_shape(const char* name, const Tensor& t, DType dtype,
                   std::initializer_list<std::int64_t> sizes, const char* words);

/// Broadcasts t (right-aligned, size 1 or the full size) to `sizes`; axes that broadcast get stride
/// 0.
Tensor expand(const char* name, const Tensor& t, std::initializer_list<std::int64_t> sizes,
              const char* words);

/// An output must not write one element twice.
void require_no_overlap(const char* name, const Tensor& t);

/// CSR offsets ascend and end at the number of pairs; block indices are in range and ascend. Host
/// tensors only.
void check_block_list(const BlockList& list, const Tensor& given_offsets, std::int64_t key_blocks);

}  // namespace tilewise::arguments
