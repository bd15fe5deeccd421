/// merge_rows: two results over disjoint keys, merged in place into the first (docs/math.md F15).
///
///   LSE = log(exp(LSE_a) + exp(LSE_b));  O = exp(LSE_a - LSE) O_a + exp(LSE_b - LSE) O_b
///
/// A few lanes of a warp take a row, eight columns each at a time. A part that saw no key leaves
/// the other's bits.
#pragma once

#include "cuda/kernels/rows/merge_args.h"
#include "cuda/tile/math.cuh"
#include "cuda/tile/mma.cuh"
#include "cuda/tile/ptx/copy.cuh"

namespace tilewise::merge_rows {

using namespace tile;

template <Config kConfig>
struct Columns {
  static constexpr bool kFloat = kConfig.type == Type::float32;
  static constexpr Element kElement = kConfig.type == Type::fp16 ? Element::fp16 : Element::bf16;
  float x[8];

  __forceinline__ void load(const View4& view, i64 row, int d, int end) {
    if constexpr (kConfig.vectors && kFloat) {
      const float* from = static_cast<const float*>(view.data) + row + d;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Bytes16 v = load_global_16(from + 4 * half);
        const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) x[4 * half + e] = __int_as_float(static_cast<int>(words[e]));
      }
    } else if constexpr (kConfig.vectors) {
      const Bytes16 v = load_global_16(static_cast<const unsigned short*>(view.data) + row + d);
      const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) x[e] = widen<kElement>(words[e / 2] >> (16 * (e % 2)) & 0xffffU);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (d + e >= end) break;
        const i64 at = row + (d + e) * view.stride_d;
        if constexpr (kFloat) {
          x[e] = static_cast<const float*>(view.data)[at];
        } else {
          x[e] = widen<kElement>(static_cast<const unsigned short*>(view.data)[at]);
        }
      }
    }
  }
  __forceinline__ void store(const View4& view, i64 row, int d, int end) const {
    if constexpr (kConfig.vectors && !kFloat) {
      store_global_16(static_cast<unsigned short*>(view.data) + row + d,
                      {pack<kElement>(x[0], x[1]), pack<kElement>(x[2], x[3]),
                       pack<kElement>(x[4], x[5]), pack<kElement>(x[6], x[7])});
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (d + e >= end) break;
        const i64 at = row + (d + e) * view.stride_d;
        if constexpr (kFloat) {
          static_cast<float*>(view.data)[at] = x[e];
        } else {
          static_cast<unsigned short*>(view.data)[at] =
              static_cast<unsigned short>(pack<kElement>(x[e], 0.0F));
        }
      }
    }
  }
};

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  constexpr int kLanes = kConfig.lanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const i64 row = (blockIdx.x * static_cast<i64>(kThreads) + threadIdx.x) / kLanes;
  const bool exists = row < args.rows;
  const i64 bh = exists ? row / args.seq_q : 0, i = exists ? row % args.seq_q : 0;
  const i64 b = bh / args.heads, h = bh % args.heads;
  const auto statistic = [&](const RowStatistics& of) {
    return of.data + b * of.stride_b + h * of.stride_h + i * of.stride_s;
  };
  const auto begin = [&](const View4& of) {
    return b * of.stride_b + h * of.stride_h + i * of.stride_s;
  };
  wait_for_previous();  // for both results
  float* const lse = statistic(args.lse);
  const float left = *lse, right = *statistic(args.other_lse);
  __syncwarp();  // all lanes of the row have read what the first one writes
  if (!exists || right == -infinity()) return;
  const float high = left > right || left != left ? left : right;
  const float a = exp2_approx((left - high) * kLog2e), c = exp2_approx((right - high) * kLog2e);
  const float sum = a + c;
  if (lane == 0) *lse = high + log2_approx(sum) * kLn2;
  const i64 to = begin(args.o), from = begin(args.other);
#pragma unroll 1
  for (int d = 8 * lane; d < args.head_dim_v; d += 8 * kLanes) {
    Columns<kConfig> own, other;
    other.load(args.other, from, d, args.head_dim_v);
    if (left > -infinity() || left != left) {
      own.load(args.o, to, d, args.head_dim_v);
#pragma unroll
      for (int e = 0; e < 8; ++e) other.x[e] = (a * own.x[e] + c * other.x[e]) / sum;
    }
    other.store(args.o, to, d, args.head_dim_v);
  }
}

}  // namespace tilewise::merge_rows
