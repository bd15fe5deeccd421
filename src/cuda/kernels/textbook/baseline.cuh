/// baseline: attention as the textbook writes it, five kernels around one S x S buffer.
///
///   scores       Y = mask(cap(scale * Q K^T) + bias)   (F1) to (F4)   reads all of K for every row
///   row_max      m = max_j Y                           (F5), with the largest taken out: the walks
///   exponentials e = exp(Y - m), l = sum_j e           over S that the one-pass forms save
///   normalise    P = e / l, L = m + log l              (F6)
///   output       O = P V                               (F14)          reads all of V for every row
///
/// Nothing is tiled and nothing is reused: what it costs is what the other implementations save.
/// See textbook/README.md.
#pragma once

#include "cuda/kernels/textbook/baseline_args.h"
#include "cuda/kernels/textbook/textbook.cuh"

namespace tilewise::baseline {

using textbook::block_reduce;
using textbook::i64;
using textbook::kThreads;
using textbook::load;
using textbook::Max;
using textbook::Row;
using textbook::row_at;
using textbook::store;
using textbook::Sum;

/// Index of this thread in a one-dimensional grid.
__forceinline__ i64 thread_index() { return static_cast<i64>(blockIdx.x) * kThreads + threadIdx.x; }

__forceinline__ i64 start_of(const tile::View4& view, i64 b, i64 h, i64 s) {
  return b * view.stride_b + h * view.stride_h + s * view.stride_s;
}

/// One thread an element of S.
template <Config kConfig>
void scores(const Args& a) {
  const i64 element = thread_index();
  if (element >= a.rows * a.rule.seq_k) return;
  const int j = static_cast<int>(element % a.rule.seq_k);
  const Row row = row_at(element / a.rule.seq_k, a.rule.heads, a.rule.seq_q);
  const i64 q = start_of(a.q, row.b, row.h, row.i);
  const i64 k = start_of(a.k, row.b, row.h / a.group, j);
  float product = 0.0F;
  for (int d = 0; d < a.head_dim; ++d) {
    product += load<kConfig.storage>(a.q.data, q + d * a.q.stride_d) *
               load<kConfig.storage>(a.k.data, k + d * a.k.stride_d);
  }
  a.s[element] = textbook::logit(a.rule, textbook::row_rule(a.rule, row), product, j);
}

/// One block a row.
template <Config kConfig>
void row_max(const Args& a) {
  const float* s = a.s + blockIdx.x * static_cast<i64>(a.rule.seq_k);
  float maximum = -tile::infinity();
  for (int j = threadIdx.x; j < a.rule.seq_k; j += kThreads) maximum = fmaxf(maximum, s[j]);
  maximum = block_reduce<kThreads>(maximum, Max{});
  if (threadIdx.x == 0) a.maximum[blockIdx.x] = maximum;
}

/// One block a row.
template <Config kConfig>
void exponentials(const Args& a) {
  float* s = a.s + blockIdx.x * static_cast<i64>(a.rule.seq_k);
  const float shift = textbook::shift(a.maximum[blockIdx.x]);
  float sum = 0.0F;
  for (int j = threadIdx.x; j < a.rule.seq_k; j += kThreads) {
    s[j] = expf(s[j] - shift);
    sum += s[j];
  }
  sum = block_reduce<kThreads>(sum, Sum{});
  if (threadIdx.x == 0) a.sum[blockIdx.x] = sum;
}

/// One block a row.
template <Config kConfig>
void normalise(const Args& a) {
  float* s = a.s + blockIdx.x * static_cast<i64>(a.rule.seq_k);
  const float sum = a.sum[blockIdx.x];
  const float factor = sum == 0.0F ? 0.0F : 1.0F / sum;  // a row that sees nothing stays 0
  for (int j = threadIdx.x; j < a.rule.seq_k; j += kThreads) s[j] *= factor;
  if (threadIdx.x == 0 && a.lse.data != nullptr) {
    const Row row = row_at(blockIdx.x, a.rule.heads, a.rule.seq_q);
    *textbook::at(a.lse, row) = textbook::shift(a.maximum[blockIdx.x]) + logf(sum);
  }
}

/// One thread an element of O.
template <Config kConfig>
void output(const Args& a) {
  const i64 element = thread_index();
  if (element >= a.rows * a.head_dim_v) return;
  const i64 d = element % a.head_dim_v;
  const i64 r = element / a.head_dim_v;
  const Row row = row_at(r, a.rule.heads, a.rule.seq_q);
  const float* p = a.s + r * a.rule.seq_k;
  const i64 v = start_of(a.v, row.b, row.h / a.group, 0) + d * a.v.stride_d;
  float sum = 0.0F;
  for (i64 j = 0; j < a.rule.seq_k; ++j) {
    // A hidden key gives nothing, whatever its V holds.
    if (p[j] != 0.0F) sum += p[j] * load<kConfig.storage>(a.v.data, v + j * a.v.stride_s);
  }
  store<kConfig.storage>(a.o.data, start_of(a.o, row.b, row.h, row.i) + d * a.o.stride_d, sum);
}

}  // namespace tilewise::baseline
