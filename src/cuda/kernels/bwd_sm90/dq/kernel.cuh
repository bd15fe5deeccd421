/// bwd_dq_sm90: dQ on Hopper at head dims above 128, beside bwd_sm90's dK and dV. FlashAttention-2,
/// Dao 2023, Algorithm 2, over queries: dQ stays in registers, nothing is added in memory.
///
///   P = exp(min(S - LSE, 0)); dP = dO V^T; dS = P (dP - delta); dQ = scale dS K
///   (docs/math.md B1, B4, B5, B8)
///
/// One block a multiprocessor takes tile after tile of 128 queries. Roles: one thread of warpgroup
/// 0 copies (Producer); warpgroups 1 and 2 compute 64 queries each (Consumer), 64 keys a step, from
/// right to left. -LSE and delta come from bwd_sm90's jobs. Schedule, budgets, measurements:
/// bwd_sm90/dq/README.md.
#pragma once

#include "cuda/kernels/bwd_sm90/dq/consumer.cuh"
#include "cuda/kernels/bwd_sm90/dq/producer.cuh"

namespace tilewise::bwd_dq_sm90 {

using namespace tile;

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared<kConfig> shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  // A warp-uniform role: what depends on it stays in uniform registers.
  const int role = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / 128, 0);
  if (role == 0) {
    give_registers<24>();
    if (threadIdx.x == 0) {
      Producer<kConfig> producer{args, shared};
      producer.run();
    }
  } else {
    take_registers<240>();
    Consumer<kConfig> consumer(args, shared.base, role - 1);
    consumer.run();
  }
}

}  // namespace tilewise::bwd_dq_sm90
