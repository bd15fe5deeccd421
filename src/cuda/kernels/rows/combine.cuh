/// combine: merges partial results over disjoint keys.
///
///   m = max_p m_p;  w_p = l_p exp(m_p - m);  l = sum_p w_p
///   LSE = m + log l;  O = sum_p w_p O_p / l (docs/math.md F15)
///
/// NOTE: a part keeps m and l apart. LSE in one float loses log l where a huge bias shifts the row.
///
/// A group of lanes takes one row, four columns a lane; each lane works out the weights of some
/// parts. The order of the sum is the order of the parts: repeatable. Loads of
/// several parts are under way at once: one after another they took 0.35 us a part.
#pragma once

#include "cuda/kernels/rows/combine_args.h"
#include "cuda/tile/key_parts.cuh"

namespace tilewise::combine {

using namespace tile;

/// Parts whose loads are under way at once.
constexpr int ahead(int head_dim_v) { return head_dim_v > 128 ? 4 : 8; }

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

/// Adds up to ahead() parts from first + begin on, whose weights the lanes from `begin` on hold
/// in `own` (0: no such part, or one that saw no key and wrote no O).
template <Config kConfig, int kVectors>
__forceinline__ void add_parts(const Args& args, i64 row, int lane, int first, int begin, float own,
                               float& sum, float (&O)[kVectors][4]) {
  constexpr int kLanes = lanes(kConfig.head_dim_v);
  constexpr int kAhead = ahead(kConfig.head_dim_v);
  constexpr int kParts = kAhead < kLanes ? kAhead : kLanes;
  float weight[kParts];
  Bytes16 v[kParts][kVectors] = {};
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int from_lane = static_cast<int>(threadIdx.x) % 32 - lane + begin + i;
    weight[i] = __shfl_sync(~0U, own, from_lane);
    if (weight[i] == 0.0F) continue;
    const float* from = args.o + ((first + begin + i) * args.rows + row) * kConfig.head_dim_v;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int d = 4 * (lane + k * kLanes);
      if (d < kConfig.head_dim_v) v[i][k] = load_global_16(from + d);
    }
  }
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    if (weight[i] == 0.0F) continue;
    sum += weight[i];
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      O[k][0] += weight[i] * __int_as_float(static_cast<int>(v[i][k].x));
      O[k][1] += weight[i] * __int_as_float(static_cast<int>(v[i][k].y));
      O[k][2] += weight[i] * __int_as_float(static_cast<int>(v[i][k].z));
      O[k][3] += weight[i] * __int_as_float(static_cast<int>(v[i][k].w));
    }
  }
}

/// Parts of a row that are to be merged: none where the one that there is has been written as O.
template <Config kConfig>
__forceinline__ int parts_of(const Args& args, i64 row) {
  if constexpr (!kConfig.own_parts) return args.parts;
  const i64 batch = row / args.seq_q / args.heads;
  const int count = part_range(args.keys, keys_of(args.keys, static_cast<int>(batch))).count;
  return count > 1 ? count : 0;
}
/// The most of any row of the warp, whose lanes go through the parts together.
template <Config kConfig>
__forceinline__ int parts_of_warp(int parts) {
  if constexpr (!kConfig.own_parts) return parts;
  for (int other = 16; other > 0; other /= 2)
    parts = max(parts, __shfl_xor_sync(~0U, parts, other));
  return parts;
}

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  constexpr int kLanes = lanes(kConfig.head_dim_v);
  constexpr int kVectors = (kConfig.head_dim_v + 4 * kLanes - 1) / (4 * kLanes);
  const i64 group = (blockIdx.x * static_cast<i64>(kThreads) + threadIdx.x) / kLanes;
  const i64 row = group < args.rows ? group : args.rows - 1;  // all lanes are needed to shuffle
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int parts = parts_of<kConfig>(args, row), most = parts_of_warp<kConfig>(parts);
  wait_for_previous();  // for the parts
  float own = lane < parts ? args.m[lane * args.rows + row] : -infinity(), top = own;
  for (int p = lane + kLanes; p < parts; p += kLanes) top = fmaxf(top, args.m[p * args.rows + row]);
#pragma unroll
  for (int other = kLanes / 2; other > 0; other /= 2)
    top = fmaxf(top, __shfl_xor_sync(~0U, top, other));
  // No part saw a key: weights 0. An infinite m or a NaN l of a part makes NaN, as the formula
  // does.
  const float base = top == -infinity() ? 0.0F : top;
  const auto weight = [&](int part, float m) {
    return m == -infinity() ? 0.0F : args.l[part * args.rows + row] * exp2_approx(m - base);
  };
  float sum = 0.0F;
  float O[kVectors][4] = {};
  for (int first = 0; first < most; first += kLanes) {
    const int count = min(kLanes, most - first);
    if (first > 0)
      own = first + lane < parts ? args.m[(first + lane) * args.rows + row] : -infinity();
    own = weight(first + lane, own);
    for (int begin = 0; begin < count; begin += ahead(kConfig.head_dim_v)) {
      add_parts<kConfig, kVectors>(args, row, lane, first, begin, own, sum, O);
    }
  }
  const float inverse = sum == 0.0F ? 0.0F : 1.0F / sum;
  if (group >= args.rows || parts == 0) return;
  const i64 pair = row / args.seq_q, i = row % args.seq_q;
  const i64 b = pair / args.heads, h = pair % args.heads;
  if (lane == 0 && args.lse_to != nullptr) {
    // A bias of the least finite float on all keys: LSE is that, and so is m.
    args.lse_to[b * args.lse_b + h * args.lse_h + i * args.lse_s] =
        base == kLowest ? kLowest : (base + log2_approx(sum)) * kLn2;
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
