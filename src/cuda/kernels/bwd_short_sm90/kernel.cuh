/// bwd_short_sm90: dQ, dK, dV of short sequences on Hopper, in one launch without sums in memory.
/// FlashAttention-2, Dao 2023, Algorithm 2, once over keys and once over queries.
///
///   delta = rowsum(dO O); P = exp(min(S - LSE, 0)); dP = dO V^T; dS = P (dP - delta)
///   dV = P^T dO; dK = scale dS^T Q; dQ = scale dS K  (docs/math.md B1-B9)
///
/// A job is all of a key head of a sequence, or one pass of it. A pass keeps 128 rows of one side;
/// the other side's pass by, 64 at a time. Roles: one thread of warpgroup 0 copies (Producer);
/// three of its warps make LSE and delta of the next job (Statistics); warpgroups 1 and 2 compute
/// 64 rows of a pass each (Consumer). Schedule, budgets, measurements: bwd_short_sm90/README.md.
#pragma once

#include "cuda/kernels/bwd_short_sm90/consumer.cuh"
#include "cuda/kernels/bwd_short_sm90/producer.cuh"

namespace tilewise::bwd_short_sm90 {

using namespace tile;

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared<kConfig> shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  if constexpr (kPacked<kConfig>) order_sequences<kConfig>(args, shared);
  __syncthreads();
  // A warp-uniform role: what depends on it stays in uniform registers.
  const int role = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / 128, 0);
  if (role == 0) {
    give_registers<kConfig.other_registers()>();
    const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp > 0) {
      Statistics<kConfig> statistics{args, shared};
      statistics.run(warp - 1, static_cast<int>(threadIdx.x) % 32);
    } else if (threadIdx.x == 0) {
      Producer<kConfig> producer{args, shared};
      producer.run();
    }
  } else {
    take_registers<kConfig.registers()>();
    Consumer<kConfig> consumer(args, shared.base, role - 1);
    consumer.run();
  }
}

}  // namespace tilewise::bwd_short_sm90
