/// copy_rows: a tensor of any strides to one of any strides, element by element: what a library's
/// matrix product needs before and after it when the caller's layout is not the one it takes. One
/// thread an element, or as many neighbours as 8 bytes hold, innermost axis fastest.
#pragma once

#include "cuda/kernels/rows/copy_args.h"
#include "cuda/tile/math.cuh"

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
template <Config kConfig, class Int>
__forceinline__ void copy(const Args& a, Int index) {
  const Int dim = static_cast<Int>(a.dim), rows = static_cast<Int>(a.rows);
  const Int heads = static_cast<Int>(a.heads);
  const Int row = index / dim, bh = row / rows;
  const long long d = index - row * dim, s = row - bh * rows;
  const long long b = bh / heads, h = bh % heads;
  const auto place = [&](const tile::View4& view) {
    return b * view.stride_b + h * view.stride_h + s * view.stride_s + d * view.stride_d;
  };
  using Type = typename Word<kConfig.element_bytes>::Type;
  Type value = static_cast<const Type*>(a.from.data)[place(a.from)];
  if constexpr (kConfig.hides) {
    if (a.lse[b * a.lse_b + h * a.lse_h + s * a.lse_s] == -tile::infinity()) value = 0;
  }
  static_cast<Type*>(a.to.data)[place(a.to)] = value;
}

template <Config kConfig>
void kernel(const Args& a) {
  const long long element = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (element >= a.elements) return;
  if (a.elements < 1LL << 31) {
    copy<kConfig>(a, static_cast<unsigned>(element));
  } else {
    copy<kConfig>(a, element);
  }
}

}  // namespace tilewise::copy_rows
