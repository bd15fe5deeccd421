/// bwd_packed_delta: delta of the rows of packed sequences, for those that see few keys from P:
///
///   delta = sum_j P_j dP_j / sum_j P_j - dLSE,  else rowsum(dO O) - dLSE  (B2)
///
/// O has been rounded to 16 bits, which shows in the gradients of rows that see few keys. One warp
/// a row of a head, the columns of a row over its lanes.
#pragma once

#include "cuda/kernels/rows/packed_delta_args.h"
#include "cuda/tile/hopper/packed_sequence.cuh"
#include "cuda/tile/order.cuh"

namespace tilewise::bwd_packed_delta {

using namespace tile;

template <Config kConfig>
struct Row {
  static constexpr int kEach = kConfig.columns / 32;  ///< columns of a lane
  const Args& args;
  const int lane, head;
  int row = 0, sequence = 0, i = 0, seq_q = 0, seq_k = 0, k_begin = 0;

  /// A row of a head, zero beyond its end.
  __forceinline__ void read(float (&x)[kEach], const View4& view, int of_head, int of_row,
                            int columns) const {
    const auto* from = static_cast<const unsigned short*>(view.data) + of_head * view.stride_h +
                       of_row * view.stride_s;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int d = lane + 32 * e;
      x[e] = d < columns ? widen<kConfig.element>(from[d]) : 0.0F;
    }
  }
  static __forceinline__ float dot(const float (&x)[kEach], const float (&y)[kEach]) {
    float sum = 0.0F;
#pragma unroll
    for (int e = 0; e < kEach; ++e) sum += x[e] * y[e];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
    return sum;
  }
  /// False: the row is no sequence's.
  __forceinline__ bool find() {
    sequence = last_not_after(args.cu_q, args.sequences, row);
    if (sequence >= args.sequences) return false;
    const int q_begin = offset_at(args.cu_q, sequence);
    k_begin = offset_at(args.cu_k, sequence);
    i = row - q_begin;
    seq_q = offset_at(args.cu_q, sequence + 1) - q_begin;
    seq_k = min(max(offset_at(args.cu_k, sequence + 1) - k_begin, 0), args.k_rows);
    return i >= 0 && i < seq_q;
  }
  /// (F2, F3) in the log2 domain
  __forceinline__ float logit(float product, int j, float slope) const {
    float x = args.scale * product;
    if (args.softcap != 0.0F) x = args.softcap * tanh_exact(x / args.softcap);
    return kLog2e * (x - slope * fabsf(static_cast<float>(i + seq_k - seq_q - j)));
  }
  /// Sums over the keys that the row sees. Beside few keys, products count from that of the pair
  /// that has most of the row, so that of a row with one key nothing is left.
  __forceinline__ float from_probabilities(const float (&d_o)[kEach], float otherwise) const {
    constexpr int kFewKeys = 8;
    const Diagonals d(args.positions, seq_q, seq_k);
    const int begin = max(0, i + d.low), end = min(seq_k, i + d.high);
    if (end - begin > kMostKeys) return otherwise;
    const float lse2 = kLog2e * args.lse[head * args.lse_h + row * args.lse_s];
    const float slope =
        args.alibi == nullptr ? 0.0F : args.alibi[sequence * args.alibi_b + head * args.alibi_h];
    float q[kEach], x[kEach];
    read(q, args.q, head, row, args.head_dim);
    float sum = 0.0F, weighted = 0.0F, origin = 0.0F, most = 0.0F;
#pragma unroll 1
    for (int j = begin; j < end; ++j) {
      read(x, args.k, head / args.group, k_begin + j, args.head_dim);
      const float p = exp2_approx(logit(dot(q, x), j, slope) - lse2);
      read(x, args.v, head / args.group, k_begin + j, args.head_dim_v);
      const float product = dot(d_o, x);
      if (seq_k <= kFewKeys && p > most) {
        weighted += sum * (origin - product);
        origin = product;
        most = p;
      }
      sum += p;
      // Nothing comes through a pair without weight, a NaN of V neither.
      weighted += p == 0.0F ? 0.0F : p * (product - origin);
    }
    // A row without keys, NaN, infinite logits: the sums say nothing.
    return sum > 0x1p-20F && sum < 0x1p20F ? weighted / sum + origin : otherwise;
  }
  __forceinline__ float delta() {
    // Nothing comes from a row without keys, whatever dO and dL hold. CONTRACT 3
    if (!find() || args.lse[head * args.lse_h + row * args.lse_s] == -infinity()) return 0.0F;
    float d_o[kEach], o[kEach];
    read(d_o, args.d_o, head, row, args.head_dim_v);
    read(o, args.o, head, row, args.head_dim_v);
    float sum = from_probabilities(d_o, dot(d_o, o));
    if (args.d_lse != nullptr) sum -= args.d_lse[head * args.d_lse_h + row * args.d_lse_s];
    return sum;
  }
};

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  const int thread = static_cast<int>(threadIdx.x);
  const i64 warp = blockIdx.x * static_cast<i64>(kThreads / 32) + thread / 32;
  if (warp >= static_cast<i64>(args.heads_q) * args.q_rows) return;
  const int head = static_cast<int>(warp / args.q_rows);
  Row<kConfig> row{args, thread % 32, head};
  row.row = static_cast<int>(warp - static_cast<i64>(head) * args.q_rows);
  const float delta = row.delta();
  if (row.lane == 0) args.delta[warp] = delta;
}

}  // namespace tilewise::bwd_packed_delta
