/// combine: merges partial results over disjoint keys.
///
///   m = max_p m_p;  w_p = l_p exp(m_p - m);  l = sum_p w_p
///   LSE = m + log l;  O = sum_p w_p O_p / l (docs/math.md F15)
///
/// NOTE: a part keeps m and l apart. LSE in one float loses log l where a huge bias shifts the row.
///
/// A group of lanes takes one row, or its share of a row's parts, four columns a lane; each lane
/// works out the weights of some parts. The order of the sums is the order of the parts:
/// repeatable. Loads of several parts are under way at once, the first ones before their weights
/// are known: one after another they took 0.35 us a part.
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

/// O of up to ahead() parts of a row from `first` on, before the part `end`.
template <Config kConfig>
struct Parts {
  static constexpr int kLanes = lanes(kConfig.head_dim_v);
  static constexpr int kVectors = (kConfig.head_dim_v + 4 * kLanes - 1) / (4 * kLanes);
  static constexpr int kAhead = ahead(kConfig.head_dim_v);
  static constexpr int kCount = kAhead < kLanes ? kAhead : kLanes;
  Bytes16 v[kCount][kVectors];

  __forceinline__ void load(const Args& args, i64 row, int lane, int first, int end) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (first + i >= end) break;
      const float* from = args.o + ((first + i) * args.rows + row) * kConfig.head_dim_v;
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        const int d = 4 * (lane + k * kLanes);
        if (d < kConfig.head_dim_v) v[i][k] = load_global_16(from + d);
      }
    }
  }
  /// Adds them by the weights that the lanes from `begin` on hold in `own`: 0 where there is no
  /// such part, or one that saw no key and wrote no O.
  __forceinline__ void add_to(float (&O)[kVectors][4], float& sum, int lane, int begin,
                              float own) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int from_lane = static_cast<int>(threadIdx.x) % 32 - lane + begin + i;
      const float weight = __shfl_sync(~0U, own, from_lane);
      if (weight == 0.0F) continue;
      sum += weight;
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        O[k][0] += weight * __int_as_float(static_cast<int>(v[i][k].x));
        O[k][1] += weight * __int_as_float(static_cast<int>(v[i][k].y));
        O[k][2] += weight * __int_as_float(static_cast<int>(v[i][k].z));
        O[k][3] += weight * __int_as_float(static_cast<int>(v[i][k].w));
      }
    }
  }
};

/// Parts of a row that are to be merged: none where the one that there is has been written as O.
template <Config kConfig>
__forceinline__ int parts_of(const Args& args, i64 row) {
  if constexpr (!kConfig.own_parts) return args.parts;
  const i64 batch = row / args.seq_q / args.heads;
  const int count = part_range(args.keys, keys_of(args.keys, static_cast<int>(batch))).count;
  return count > 1 ? count : 0;
}
/// What the groups of a row have each is brought together in the first of them, in their order.
template <Config kConfig, int kVectors>
__forceinline__ void merge_shares(int share, float& base, float& sum, float (&O)[kVectors][4]) {
  extern __shared__ __align__(16) unsigned char memory[];
  constexpr u32 kRound = 16 * kThreads;
  const u32 own = shared_address(memory) + 16 * static_cast<u32>(threadIdx.x);
  if (share > 0) {
    store_shared_16(own, base, sum, 0.0F, 0.0F);
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
      store_shared_16(own + (k + 1) * kRound, O[k][0], O[k][1], O[k][2], O[k][3]);
  }
  __syncthreads();
  if (share > 0) return;
  const auto number = [](u32 bits) { return __int_as_float(static_cast<int>(bits)); };
#pragma unroll
  for (int other = 1; other < kConfig.shares; ++other) {
    const u32 from = own + 16 * static_cast<u32>(other * lanes(kConfig.head_dim_v));
    const Bytes16 theirs = load_shared_16(from);
    if (number(theirs.y) == 0.0F) continue;  // it has no key
    const float top = sum == 0.0F ? number(theirs.x) : fmaxf(base, number(theirs.x));
    const float alpha = sum == 0.0F ? 0.0F : exp2_approx(base - top);
    const float beta = exp2_approx(number(theirs.x) - top);
    base = top;
    sum = alpha * sum + beta * number(theirs.y);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const Bytes16 o = load_shared_16(from + (k + 1) * kRound);
      O[k][0] = alpha * O[k][0] + beta * number(o.x);
      O[k][1] = alpha * O[k][1] + beta * number(o.y);
      O[k][2] = alpha * O[k][2] + beta * number(o.z);
      O[k][3] = alpha * O[k][3] + beta * number(o.w);
    }
  }
}

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  using PartsOf = Parts<kConfig>;
  constexpr int kLanes = PartsOf::kLanes, kVectors = PartsOf::kVectors, kCount = PartsOf::kCount;
  constexpr int kShares = kConfig.shares;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const i64 group = (blockIdx.x * static_cast<i64>(kThreads) + threadIdx.x) / kLanes;
  const int share = static_cast<int>(group % kShares);
  // All lanes are needed to shuffle.
  const i64 row = group / kShares < args.rows ? group / kShares : args.rows - 1;
  // The same for all lanes of a warp, which go through the parts together.
  const int each = (args.parts + kShares - 1) / kShares, begin = share * each;
  wait_for_previous();  // for the parts
  PartsOf of;
  of.load(args, row, lane, begin, min(begin + each, args.parts));
  const int parts = parts_of<kConfig>(args, row), end = min(begin + each, parts);
  const auto m_of = [&](int p) { return p < end ? args.m[p * args.rows + row] : -infinity(); };
  const auto l_of = [&](int p) { return p < end ? args.l[p * args.rows + row] : 0.0F; };
  float own = m_of(begin + lane), own_l = l_of(begin + lane), top = own;
  for (int p = begin + lane + kLanes; p < end; p += kLanes) top = fmaxf(top, m_of(p));
#pragma unroll
  for (int other = kLanes / 2; other > 0; other /= 2)
    top = fmaxf(top, __shfl_xor_sync(~0U, top, other));
  // No part saw a key: weights 0. An infinite m or a NaN l of a part makes NaN, as the formula
  // does.
  float base = top == -infinity() ? 0.0F : top;
  float sum = 0.0F;
  float O[kVectors][4] = {};
  for (int first = 0; first < each; first += kLanes) {
    if (first > 0) own = m_of(begin + first + lane), own_l = l_of(begin + first + lane);
    own = own == -infinity() ? 0.0F : own_l * exp2_approx(own - base);
    for (int at = 0; at < min(kLanes, each - first); at += kCount) {
      if (first + at > 0) of.load(args, row, lane, begin + first + at, end);
      of.add_to(O, sum, lane, at, own);
    }
  }
  if constexpr (kShares > 1) merge_shares<kConfig>(share, base, sum, O);
  const float inverse = sum == 0.0F ? 0.0F : 1.0F / sum;
  if (share > 0 || group / kShares >= args.rows || parts == 0) return;
  const i64 bh = row / args.seq_q, i = row % args.seq_q;
  const i64 b = bh / args.heads, h = bh % args.heads;
  if (lane == 0 && args.lse_to != nullptr) {
    args.lse_to[b * args.lse_b + h * args.lse_h + i * args.lse_s] =
        base == kLowest ? args.lowest : (base + log2_approx(sum)) * kLn2;
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
