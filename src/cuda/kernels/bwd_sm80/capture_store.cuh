/// bwd_capture_store: sums of the gradient of a captured tensor to the tensor that the caller gave,
/// of its type and any strides. One thread an element.
#pragma once

#include "cuda/kernels/bwd_sm80/capture_store_args.h"
#include "cuda/tile/exact_sum.cuh"

namespace tilewise::bwd_capture_store {

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  const long long element = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (element >= args.elements) return;
  long long rest = element, at = 0;
#pragma unroll
  for (int axis = 3; axis >= 0; --axis) {
    at += rest % args.sizes[axis] * args.strides[axis];
    rest /= args.sizes[axis];
  }
  double whole = 0.0;
  if constexpr (kConfig.exact) {
    whole = tile::exact_sum(static_cast<const tile::u64*>(args.sums) +
                            element * tile::ExactSum::kWords);
  } else {
    whole = static_cast<double>(static_cast<const float*>(args.sums)[element]);
  }
  const auto sum = static_cast<float>(whole);
  if constexpr (kConfig.type == Type::float32) {
    static_cast<float*>(args.to)[at] = sum;
  } else if constexpr (kConfig.type == Type::float64) {
    static_cast<double*>(args.to)[at] = whole;
  } else {
    constexpr auto kElement =
        kConfig.type == Type::bf16 ? tile::Element::bf16 : tile::Element::fp16;
    static_cast<unsigned short*>(args.to)[at] =
        static_cast<unsigned short>(tile::pack<kElement>(sum, 0.0F));
  }
}

}  // namespace tilewise::bwd_capture_store
