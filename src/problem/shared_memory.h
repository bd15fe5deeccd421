/// Whether two tensors share an element's memory.
#pragma once

#include <cstdint>

#include "tilewise/tensor.h"

namespace tilewise {

/// The addresses from a tensor's first byte to its last. Empty if it has no elements or no data.
struct Extent {
  std::uintptr_t begin = 0, end = 0;

  explicit Extent(const Tensor& t);
  bool empty() const { return begin == end; }
  bool meets(const Extent& other) const { return begin < other.end && other.begin < end; }
};

/// True if a byte of an element of `a` is a byte of an element of `b`. Exact for any strides: views
/// that interleave do not share. Two views for which 65,536 steps do not tell count as sharing.
bool share_memory(const Tensor& a, const Tensor& b);

}  // namespace tilewise
