/// bwd_delta: what the backward needs of each row, before its main pass.
///
///   delta = rowsum(dO O) - dLSE;  lse2 = LSE * log2 e (B2)
///
/// lse2 is +inf where a row saw no key and for rows that pad the last tile: P = 2^(S - lse2) is
/// then 0 without a mask. delta is -dLSE there beside a sink, else 0. Such a row has LSE = -inf, or
/// LSE = sink and O = 0. Also clears the sums of dQ. A group of lanes takes one row, eight columns
/// a lane.
#pragma once

#include "cuda/kernels/rows/delta_args.h"
#include "cuda/tile/math.cuh"
#include "cuda/tile/sequences.cuh"

namespace tilewise::bwd_delta {

using namespace tile;

constexpr int lanes(int head_dim_v) {
  const int chunks = head_dim_v / 8;
  return chunks <= 2 ? 2 : chunks <= 4 ? 4 : chunks <= 8 ? 8 : chunks <= 16 ? 16 : 32;
}

/// Eight neighbours of a row as floats, zero beyond its end.
template <Type kType>
__forceinline__ void read(float (&x)[8], const void* data, i64 row, i64 stride, int d, int cols,
                          bool vectors) {
  constexpr Element kElement = kType == Type::bf16 ? Element::bf16 : Element::fp16;
  if (vectors && d + 8 <= cols) {
    if constexpr (kType == Type::float32) {
      const float* at = static_cast<const float*>(data) + row + d;
      const Bytes16 a = load_global_16(at), b = load_global_16(at + 4);
      const u32 words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] = __int_as_float(static_cast<int>(words[e]));
    } else {
      const Bytes16 a = load_global_16(static_cast<const unsigned short*>(data) + row + d);
      const u32 words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        x[2 * e] = widen<kElement>(words[e] & 0xffffU);
        x[2 * e + 1] = widen_high<kElement>(words[e]);
      }
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const i64 at = row + (d + e) * stride;
    if (d + e >= cols) {
      x[e] = 0.0F;
    } else if constexpr (kType == Type::float32) {
      x[e] = static_cast<const float*>(data)[at];
    } else {
      x[e] = widen<kElement>(static_cast<const unsigned short*>(data)[at]);
    }
  }
}

__forceinline__ const Args& dense(const Args& args) { return args; }
__forceinline__ const Args& dense(const RaggedArgs& ragged) { return ragged.args; }

/// From a row of the blocks of packed sequences, `i`, to one of the tensors. False: it is none of a
/// sequence's. What lies behind the last one has no part in anything.
__forceinline__ bool find_row(const Sequences& queries, i64& i) {
  const int block = static_cast<int>(i / kScaleRows);
  const Sequence q = sequence_of<kScaleRows>(queries, block);
  const int first = (block - first_block<kScaleRows>(q)) * kScaleRows;
  const int own = first + static_cast<int>(i % kScaleRows);
  i = q.begin + own;
  return own >= 0 && own < q.length && q.index < queries.count;
}

template <Config kConfig, class AnyArgs>
__forceinline__ void kernel(const AnyArgs& any) {
  const Args& args = dense(any);
  let_next_start();
  constexpr int kLanes = lanes(kConfig.head_dim_v);
  const i64 row = (blockIdx.x * static_cast<i64>(kThreads) + threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (row >= args.rows) return;  // whole groups of lanes leave together
  const i64 bh = row / args.rows_q;
  i64 i = row % args.rows_q;
  const i64 b = bh / args.heads, h = bh % args.heads;
  bool found = true;
  if constexpr (kConfig.packed) found = find_row(any.queries, i);
  const auto exists = [&] { return kConfig.packed ? found : i < args.seq_q; };
  float sum = 0.0F, size = 0.0F;
  if (exists()) {
    const i64 o = b * args.o.stride_b + h * args.o.stride_h + i * args.o.stride_s;
    const i64 d_o = b * args.d_o.stride_b + h * args.d_o.stride_h + i * args.d_o.stride_s;
    constexpr int kSteps = (kConfig.head_dim_v + 8 * kLanes - 1) / (8 * kLanes);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int d = 8 * (lane + step * kLanes);
      if (d >= args.head_dim_v) break;
      float x[8], y[8];
      read<kConfig.type>(x, args.o.data, o, args.o.stride_d, d, args.head_dim_v, args.vectors);
      read<kConfig.type>(y, args.d_o.data, d_o, args.d_o.stride_d, d, args.head_dim_v,
                         args.vectors);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum += x[e] * y[e], size += fabsf(x[e]);
    }
  }
  if (args.clear != nullptr) {
    float* to = args.clear + row * args.clear_cols;
    for (int c = 4 * lane; c < args.clear_cols; c += 4 * kLanes) {
      store_global_16(to + c, {0, 0, 0, 0});
    }
  }
  const u32 group =
      kLanes == 32 ? ~0U : ((1U << (kLanes % 32)) - 1U) << (threadIdx.x % 32 / kLanes * kLanes);
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(group, sum, step);
    if (args.sinks != nullptr) size += __shfl_xor_sync(group, size, step);
  }
  if (lane != 0) return;
  float lse2 = infinity();
  if (exists()) {
    const float lse = args.lse[b * args.lse_b + h * args.lse_h + i * args.lse_s];
    if (lse == -infinity()) {
      sum = 0.0F;  // whatever dO and dL hold there. CONTRACT 3
    } else {
      if (args.sinks != nullptr && size == 0.0F && lse == args.sinks[h * args.sinks_h]) {
        sum = 0.0F;  // the sink alone was seen: the same
      } else {
        // A bias of the least finite float on all keys: LSE is that.
        lse2 = max_nan(lse * kLog2e, kLowest);
      }
      if (args.d_lse != nullptr) {
        sum -= args.d_lse[b * args.d_lse_b + h * args.d_lse_h + i * args.d_lse_s];
      }
    }
  }
  args.lse2[row] = lse2;
  if (args.lse2_low != nullptr) args.lse2_low[row] = 0.0F;
  args.delta[row] = sum;
}

}  // namespace tilewise::bwd_delta
