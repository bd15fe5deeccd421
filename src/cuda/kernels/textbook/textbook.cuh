/// Device words of the implementations that keep an S x S matrix. Written to be read; one block
/// works on one row where nothing else is said.
#pragma once

#include "cuda/kernels/textbook/textbook_args.h"
#include "cuda/tile/math.cuh"

namespace tilewise::textbook {

using i64 = long long;

template <Storage kStorage>
__forceinline__ float load(const void* data, i64 at) {
  if constexpr (kStorage == Storage::float32) {
    return static_cast<const float*>(data)[at];
  } else {
    constexpr tile::Element kElement =
        kStorage == Storage::bf16 ? tile::Element::bf16 : tile::Element::fp16;
    return tile::widen<kElement>(static_cast<const unsigned short*>(data)[at]);
  }
}

template <Storage kStorage>
__forceinline__ void store(void* data, i64 at, float value) {
  if constexpr (kStorage == Storage::float32) {
    static_cast<float*>(data)[at] = value;
  } else {
    constexpr tile::Element kElement =
        kStorage == Storage::bf16 ? tile::Element::bf16 : tile::Element::fp16;
    static_cast<unsigned short*>(data)[at] =
        static_cast<unsigned short>(tile::pack<kElement>(value, 0.0F));
  }
}

/// Where row r of all (batch, head, query) rows lies.
struct Row {
  i64 b = 0, h = 0, i = 0;
};

__forceinline__ Row row_at(i64 r, int heads, int seq_q) {
  const i64 head = r / seq_q;
  return {head / heads, head % heads, r % seq_q};
}

__forceinline__ float* at(const RowView& view, const Row& row) {
  return view.data + row.b * view.stride_b + row.h * view.stride_h + row.i * view.stride_s;
}

/// What the logits of one row have in common. Row indices and lengths fit in 32 bits.
struct RowRule {
  int begin = 0, end = 0;  ///< keys that position leaves visible
  int diagonal = 0;        ///< the row's own key: i + Sk - Sq
  float slope = 0.0F;      ///< of ALiBi
};

__forceinline__ RowRule row_rule(const LogitRule& rule, const Row& row) {
  const i64 diagonal = row.i + rule.seq_k - rule.seq_q;
  i64 begin = diagonal - rule.left;
  i64 end = diagonal + rule.right + 1;
  if (rule.top_left && end > row.i + 1) end = row.i + 1;
  if (begin < 0) begin = 0;
  if (end > rule.seq_k) end = rule.seq_k;
  const float slope =
      rule.alibi == nullptr ? 0.0F : rule.alibi[row.b * rule.alibi_b + row.h * rule.alibi_h];
  // An empty range may lie far outside 32 bits.
  if (begin >= end) begin = end = 0;
  return {static_cast<int>(begin), static_cast<int>(end), static_cast<int>(diagonal), slope};
}

/// ALiBi's bias of key j. (F3)
__forceinline__ float alibi_bias(const RowRule& row, int j) {
  const int distance = row.diagonal - j;
  return -row.slope * static_cast<float>(distance < 0 ? -distance : distance);
}

/// The logit of a product: scaled, capped, biased, masked. (F1) to (F4)
__forceinline__ float logit(const LogitRule& rule, const RowRule& row, float product, int j) {
  if (j < row.begin || j >= row.end) return -tile::infinity();
  float x = product * rule.scale;
  if (rule.softcap > 0.0F) x = rule.softcap * tanhf(x / rule.softcap);
  return row.slope == 0.0F ? x : x + alibi_bias(row, j);
}

struct Sum {
  __forceinline__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// One value of all threads of a block of kCount, in a fixed order; every thread gets it.
template <int kCount, class Combine>
__forceinline__ float block_reduce(float value, Combine combine) {
  __shared__ float parts[kCount / 32];
  for (int lane = 16; lane > 0; lane /= 2) {
    value = combine(value, __shfl_xor_sync(0xFFFFFFFFU, value, lane));
  }
  __syncthreads();  // readers of the last reduction are done with `parts`
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
  for (int warp = 1; warp < kCount / 32; ++warp) value = combine(value, parts[warp]);
  return value;
}

/// What is subtracted before exp: a row that sees nothing has maximum -inf, and -inf - -inf would
/// be NaN.
__forceinline__ float shift(float maximum) { return maximum == -tile::infinity() ? 0.0F : maximum; }

}  // namespace tilewise::textbook
