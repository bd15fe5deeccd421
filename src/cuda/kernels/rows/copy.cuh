/// copy_rows: a tensor of any strides to one of any strides, element by element: what a library's
/// matrix product needs before and after it when the caller's layout is not the one it takes. One
/// thread an element, innermost axis fastest.
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

template <Config kConfig>
void kernel(const Args& a) {
  using Type = typename Word<kConfig.element_bytes>::Type;
  const long long element = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (element >= a.elements) return;
  const long long d = element % a.dim;
  const long long row = element / a.dim;
  const long long s = row % a.rows;
  const long long h = row / a.rows % a.heads;
  const long long b = row / a.rows / a.heads;
  const auto place = [&](const tile::View4& view) {
    return b * view.stride_b + h * view.stride_h + s * view.stride_s + d * view.stride_d;
  };
  Type value = static_cast<const Type*>(a.from.data)[place(a.from)];
  if constexpr (kConfig.hides) {
    if (a.lse[b * a.lse_b + h * a.lse_h + s * a.lse_s] == -tile::infinity()) value = 0;
  }
  static_cast<Type*>(a.to.data)[place(a.to)] = value;
}

}  // namespace tilewise::copy_rows
