/// bwd_sinks: the gradient of the sinks, from what bwd_delta wrote.
///
///   dsink = sum over batch and rows of P_sink (dL - delta);  P_sink = exp(sink - L)  (B10)
///
/// One block takes one head. The order of the sum is fixed: repeatable.
#pragma once

#include "cuda/kernels/rows/sinks_args.h"
#include "cuda/tile/math.cuh"

namespace tilewise::bwd_sinks {

using namespace tile;

template <Config kConfig>
__forceinline__ float row_sum(const Args& args, int head, float sink, int thread) {
  float sum = 0.0F;
  const i64 rows = static_cast<i64>(args.batch) * args.seq_q;
  for (i64 n = thread; n < rows; n += kThreads) {
    const i64 b = n / args.seq_q, i = n % args.seq_q;
    const i64 at = (b * args.heads + head) * args.rows_q + i;
    const float lse2 = kConfig.scaled ? args.lse2[at] * args.factor : args.lse2[at];
    // Where no key was seen the sink took all; where there is no row delta is 0.
    float x = lse2 == infinity() ? 0.0F : __fmaf_rn(sink, kLog2e, -lse2);
    if constexpr (kConfig.low) x -= args.lse2_low[at];
    sum -= exp2_approx(min_nan(x, 0.0F)) * args.delta[at];  // delta has lost dL already
  }
  return sum;
}

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const float sink = args.sinks[head * args.sinks_h];
  wait_for_previous();  // for lse2 and delta
  // A sink of -inf takes nothing, whatever delta is.
  float sum = sink == -infinity() ? 0.0F : row_sum<kConfig>(args, head, sink, thread);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
  const u32 sums = shared_address(shared);
  if (thread % 32 == 0) {
    store_shared_4(sums + thread / 32 * 4, static_cast<u32>(__float_as_int(sum)));
  }
  __syncthreads();  // the sums of all warps are there
  if (thread != 0) return;
  float total = 0.0F;
  for (int warp = 0; warp < kThreads / 32; ++warp) total += load_shared_f32(sums + 4 * warp);
  args.d_sinks[head * args.d_sinks_h] = total;
}

}  // namespace tilewise::bwd_sinks
