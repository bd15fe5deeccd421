/// combine: merges partial results over disjoint keys.
///
///   LSE = log sum_p exp(LSE_p);  O = sum_p exp(LSE_p - LSE) O_p (docs/math.md F15)
///
/// A group of lanes takes one row, four columns a lane; the weights are worked out by every lane
/// from the same few numbers. The order of the sum is the order of the parts: repeatable.
#pragma once

#include "cuda/kernels/combine_args.h"
#include "cuda/tile/math.cuh"

namespace tilewise::combine {

using namespace tile;

/// Lanes of a row.
constexpr int lanes(int head_dim_v) {
  const int vectors = head_dim_v / 4;
  return vectors <= 4 ? 4 : vectors <= 8 ? 8 : vectors <= 16 ? 16 : 32;
}

template <Output kOutput>
__forceinline__ void store(const View4& to, i64 offset, int d, int head_dim_v,
                           const float (&v)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (d + e >= head_dim_v) continue;
    const i64 at = offset + (d + e) * to.stride_d;
    if constexpr (kOutput == Output::float32) {
      static_cast<float*>(to.data)[at] = v[e];
    } else {
      constexpr Element kElement = kOutput == Output::bf16 ? Element::bf16 : Element::fp16;
      static_cast<unsigned short*>(to.data)[at] =
          static_cast<unsigned short>(tile::pack<kElement>(v[e], 0.0F));
    }
  }
}

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  constexpr int kLanes = lanes(kConfig.head_dim_v);
  constexpr int kVectors = (kConfig.head_dim_v + 4 * kLanes - 1) / (4 * kLanes);
  const i64 row = (blockIdx.x * static_cast<i64>(kThreads) + threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (row >= args.rows) return;
  wait_for_previous();  // for the parts
  float top = -infinity();
  for (int p = 0; p < args.parts; ++p) top = fmaxf(top, args.lse[p * args.rows + row]);
  // No part saw a key: weights 2^(-inf - 0) = 0. An infinite or NaN LSE of a part makes NaN, as the
  // formula does.
  const float base = top == -infinity() ? 0.0F : top;
  float sum = 0.0F;
  float O[kVectors][4] = {};
  for (int p = 0; p < args.parts; ++p) {
    const float lse = args.lse[p * args.rows + row];
    if (lse == -infinity()) continue;
    const float weight = exp2_approx((lse - base) * kLog2e);
    sum += weight;
    const float* from = args.o + (p * args.rows + row) * kConfig.head_dim_v;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int d = 4 * (lane + k * kLanes);
      if (d >= kConfig.head_dim_v) continue;
      const Bytes16 v = load_global_16(from + d);
      O[k][0] += weight * __int_as_float(static_cast<int>(v.x));
      O[k][1] += weight * __int_as_float(static_cast<int>(v.y));
      O[k][2] += weight * __int_as_float(static_cast<int>(v.z));
      O[k][3] += weight * __int_as_float(static_cast<int>(v.w));
    }
  }
  const float inverse = sum == 0.0F ? 0.0F : 1.0F / sum;
  const i64 pair = row / args.seq_q, i = row % args.seq_q;
  const i64 b = pair / args.heads, h = pair % args.heads;
  if (lane == 0 && args.lse_to != nullptr) {
    args.lse_to[b * args.lse_b + h * args.lse_h + i * args.lse_s] = base + kLn2 * log2_approx(sum);
  }
  const i64 offset = b * args.to.stride_b + h * args.to.stride_h + i * args.to.stride_s;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int d = 4 * (lane + k * kLanes);
    if (d >= args.head_dim_v) continue;
#pragma unroll
    for (int e = 0; e < 4; ++e) O[k][e] *= inverse;
    store<kConfig.output>(args.to, offset, d, args.head_dim_v, O[k]);
  }
}

}  // namespace tilewise::combine
