/// A thread's sum of what falls on one element of a captured tensor's gradient.
#pragma once

#include "cuda/tile/exact_sum.cuh"

namespace tilewise::bwd_sm80 {

using namespace tile;

/// A sum that moves from element to element. kExact: memory has ExactSums.
template <bool kExact>
struct MovingSum {
  float* at = nullptr;
  float sum = 0.0F;

  __forceinline__ void add(float* to, float x) {
    if (to != at) {
      leave();
      at = to;
    }
    sum += x;
  }
  __forceinline__ void leave() {
    if constexpr (kExact) {
      if (sum != 0.0F) add_exactly(reinterpret_cast<u64*>(at), sum);
    } else {
      if (sum != 0.0F) atomicAdd(at, sum);
    }
    sum = 0.0F;
  }
  /// The last one, of all lanes together: one addition where they stand at the same element.
  __forceinline__ void finish(int lane) {
    const u64 place = reinterpret_cast<u64>(at);
    const int low = static_cast<int>(place), high = static_cast<int>(place >> 32);
    const int first_low = __shfl_sync(~0U, low, 0), first_high = __shfl_sync(~0U, high, 0);
    if (!__any_sync(~0U, low != first_low || high != first_high)) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
      if (lane > 0) sum = 0.0F;
    }
    leave();
  }
};

}  // namespace tilewise::bwd_sm80
