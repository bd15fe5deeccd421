/// bwd_sm90: dQ, dK, dV on Hopper. FlashAttention-2, Dao 2023, Algorithm 2, on TMA, mbarriers and
/// wgmma, in one launch; above head dim 128 dK and dV only (bwd_sm90/large_dim.cuh), dQ by
/// bwd_dq_sm90.
///
///   delta = rowsum(dO O); P = exp(min(S - LSE, 0)); dP = dO V^T; dS = P (dP - delta)
///   dV = P^T dO; dK = scale dS^T Q; dQ = scale dS K  (docs/math.md B1-B9)
///
/// One block a multiprocessor takes job after job from a queue: to prepare rows (delta, LSE), to
/// compute a tile of 128 keys over all its queries, to convert finished sums of dQ. Roles: one
/// thread of warpgroup 0 takes jobs and copies (Producer); warpgroups 1 and 2 compute, 64 keys of
/// the tile each (Consumer); warpgroup 3 has dQ (Queries), which is added up in float32 in memory.
/// Schedule, budgets, measurements: bwd_sm90/README.md.
#pragma once

#include "cuda/kernels/bwd_sm90/bias_sums.cuh"
#include "cuda/kernels/bwd_sm90/large_dim.cuh"
#include "cuda/kernels/bwd_sm90/list_producer.cuh"
#include "cuda/kernels/bwd_sm90/passing.cuh"
#include "cuda/kernels/bwd_sm90/queries.cuh"
#include "cuda/kernels/bwd_sm90/steps.cuh"
#include "cuda/kernels/bwd_sm90/stores.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

template <Config kConfig, class AnyArgs>
__forceinline__ void kernel(const AnyArgs& any) {
  const Args& args = plain_args(any);
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared<kConfig> shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  if constexpr (kPacked<kConfig> && !kConfig.large_dim()) {
    keep_offsets<kConfig>(args, shared);
    __syncthreads();
    order_sequences<kConfig>(args, shared);
  }
  __syncthreads();
  if constexpr (kConfig.large_dim()) let_next_start();  // where blocks of this kernel end
  // A warp-uniform role: what depends on it stays in uniform registers.
  const int role = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / 128, 0);
  if (role == 0) {
    give_registers<kConfig.sums.bias ? 32 : 24>();
    if constexpr (kPacked<kConfig> && !kConfig.large_dim()) {
      if (threadIdx.x < 32) count_blocks<kConfig>(args, shared);
      if constexpr (kConfig.spans) {
        if (threadIdx.x == 0) find_spans<kConfig>(args, shared);
      }
    }
    if (threadIdx.x == 0) {
      if constexpr (kConfig.listed()) {
        ListProducer<kConfig> producer{{args, shared}};
        producer.run();
      } else {
        Producer<kConfig> producer{args, shared};
        if constexpr (kConfig.options.bias()) producer.copied.options = options_of(any);
        producer.run();
      }
    }
    if constexpr (kConfig.sums.bias) {
      if (threadIdx.x >= 32) {
        BiasSums<kConfig> sums(args, shared.base, options_of(any));
        sums.run();
      }
    }
  } else if constexpr (!kConfig.large_dim()) {
    if (role == 3) {
      give_registers<kConfig.sums.bias ? 64 : 72>();
      Queries<kConfig> queries(args, shared.base);
      queries.run();
    } else {
      take_registers<208>();
      Consumer<kConfig> consumer(args, shared.base, role - 1);
      consumer.scores.captures = captures_of(any);
      if constexpr (kConfig.options.any()) consumer.scores.options = options_of(any);
      consumer.run();
    }
  } else {
    take_registers<240>();
    if (role == 1) {
      LargeDimValues<kConfig> values(args, shared.base);
      run_jobs(values, values.scores.worker);
    } else {
      LargeDimKeys<kConfig> keys(args, shared.base);
      run_jobs(keys, keys.worker);
    }
  }
}

}  // namespace tilewise::bwd_sm90
