/// mla_sm90: O = softmax(Q K^T) V on Hopper where V is the first 512 of K's 576 columns, which are
/// read once. FlashAttention-2, Dao 2023, Algorithm 1, split over the keys.
///
///   S = scale * Q K^T; m = rowmax; P = 2^(S - m); l = rowsum(P); O = P V / l; LSE = m + log l
///   (docs/math.md F1-F15)
///
/// Schedule, budgets, measurements: mla_sm90/README.md.
#pragma once

#include "cuda/kernels/mla_sm90/consumer.cuh"
#include "cuda/kernels/mla_sm90/few_consumer.cuh"
#include "cuda/kernels/mla_sm90/producer.cuh"

namespace tilewise::mla_sm90 {

using namespace tile;

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared<kConfig> shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  let_next_start();  // the merge, where blocks of this kernel end
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // A warp-uniform role.
  const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < 4) {
    give_registers<56>();
    if (warp == 0) {
      Producer<kConfig> producer{args, shared, lane};
      producer.run();
    } else {
      QueryCopier<kConfig> copier{args, shared, warp - 1, lane};
      copier.run();
    }
  } else {
    take_registers<224>();
    if constexpr (kConfig.few) {
      FewConsumer<kConfig> consumer(args, shared, warp / 4 - 1, warp % 4, lane);
      consumer.run();
    } else {
      Consumer<kConfig> consumer(args, shared, warp / 4 - 1, warp % 4, lane);
      consumer.run();
    }
  }
}

}  // namespace tilewise::mla_sm90
