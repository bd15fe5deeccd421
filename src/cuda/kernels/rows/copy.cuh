/// copy_rows: a tensor of any strides to one of any strides, element by element: what a library's
/// matrix product needs before and after it when the caller's layout is not the one it takes. One
/// thread an element, or as many neighbours as 8 bytes hold, innermost axis fastest.
#pragma once

#include "cuda/kernels/rows/copy_args.h"

namespace tilewise::copy_rows {

template <int kBytes>
struct Word;
template <>
struct Word<2> {
  using Type = unsigned short;
};
template <>
struct Word<4> {
  using Type = unsigned;
};
template <>
struct Word<8> {
  using Type = unsigned long long;
};

/// Copies element `index` of all; divisions are those of Int.
template <int kBytes, class Int>
__forceinline__ void copy(const Args& a, Int index) {
  const Int dim = static_cast<Int>(a.dim), rows = static_cast<Int>(a.rows);
  const Int heads = static_cast<Int>(a.heads);
  const Int row = index / dim, d = index - row * dim;
  const Int bh = row / rows, s = row - bh * rows;
  const Int b = bh / heads, h = bh - b * heads;
  const auto place = [&](const tile::View4& view) {
    return static_cast<long long>(b) * view.stride_b + static_cast<long long>(h) * view.stride_h +
           static_cast<long long>(s) * view.stride_s + static_cast<long long>(d) * view.stride_d;
  };
  using Type = typename Word<kBytes>::Type;
  static_cast<Type*>(a.to.data)[place(a.to)] = static_cast<const Type*>(a.from.data)[place(a.from)];
}

template <Config kConfig>
void kernel(const Args& a) {
  const long long element = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (element >= a.elements) return;
  if (a.elements < 1LL << 31) {
    copy<kConfig.element_bytes>(a, static_cast<unsigned>(element));
  } else {
    copy<kConfig.element_bytes>(a, element);
  }
}

}  // namespace tilewise::copy_rows
