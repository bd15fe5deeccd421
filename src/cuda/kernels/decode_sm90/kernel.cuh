/// decode_sm90: O = softmax(Q K^T) V for few queries over many keys, contiguous or in pages, on
/// Hopper: K and V are read once, at the memory's rate.
///
///   S = scale * Q K^T; m = rowmax; P = 2^(S - m); l = rowsum(P); O = P V / l; LSE = m + log l
///   (docs/math.md F1-F11, F15)
///
/// Blocks take item after item: a part of one batch entry's keys for the query rows of one key
/// head. One warp copies (Producer), four compute (Consumer); each of these takes its share of the
/// keys of a block with an m, l and O of its own, merged at the item's end. Items of entries with
/// several parts leave O, m and l to `combine`. Schedule, budgets, measurements:
/// decode_sm90/README.md.
#pragma once

#include "cuda/kernels/decode_sm90/consumer.cuh"
#include "cuda/kernels/decode_sm90/producer.cuh"

namespace tilewise::decode_sm90 {

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
  if (warp < kProducerWarps) {
    if constexpr (kConfig.blocks == 2) give_registers<72>();
    if (kConfig.box_rows > 0 && warp > 0) return;
    Producer<kConfig> producer{args, shared, warp, lane};
    producer.run();
  } else {
    if constexpr (kConfig.blocks == 2) take_registers<184>();
    Consumer<kConfig> consumer(args, shared, warp - kProducerWarps, lane);
    consumer.run();
  }
}

}  // namespace tilewise::decode_sm90
