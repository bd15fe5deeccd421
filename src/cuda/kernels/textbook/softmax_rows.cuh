/// softmax_rows: what happens to an S x S matrix between two matrix products. One block a row.
///
/// eager, one pass a step, as a framework runs it:
///   logits          Y = mask(cap(scale * S) + bias)   (F1) to (F4)
///   statistics      L = log sum_j exp Y               (F5)
///   probabilities   P = exp(Y - m) / l                  (F6)
///   row_delta       delta = sum_j P * dP              (B2)
///   score_gradient  dY = P * (dP - delta + dL)        (B5)
///   scale_gradient  scale * cap'(S) * dY              (B7), (B8)
/// fused, one pass, as a compiler makes it:
///   forward         S -> P, L
///   backward        P, dP -> scale * dS
/// In eager S ends as logits, in fused it stays the product.
#pragma once

#include "cuda/kernels/textbook/softmax_rows_args.h"
#include "cuda/kernels/textbook/textbook.cuh"

namespace tilewise::softmax_rows {

using textbook::block_reduce;
using textbook::i64;
using textbook::load;
using textbook::Max;
using textbook::Row;
using textbook::row_at;
using textbook::store;
using textbook::Sum;

/// The row of this block.
struct Place {
  Row row;
  i64 begin;  ///< of its elements in a matrix
  int n;
  __forceinline__ explicit Place(const Args& a)
      : row(row_at(blockIdx.x, a.rule.heads, a.rule.seq_q)),
        begin(static_cast<i64>(blockIdx.x) * a.rule.seq_k),
        n(a.rule.seq_k) {}
};

template <Config kConfig>
void logits(const Args& a) {
  const Place at(a);
  const textbook::RowRule rule = textbook::row_rule(a.rule, at.row);
  float* s = a.s + at.begin;
  for (int j = threadIdx.x; j < at.n; j += kConfig.threads) {
    s[j] = textbook::logit(a.rule, rule, s[j], j);
  }
}

template <Config kConfig>
void statistics(const Args& a) {
  const Place at(a);
  const float* s = a.s + at.begin;
  float maximum = -tile::infinity();
  for (int j = threadIdx.x; j < at.n; j += kConfig.threads) maximum = fmaxf(maximum, s[j]);
  const float shift = textbook::shift(block_reduce<kConfig.threads>(maximum, Max{}));
  float sum = 0.0F;
  for (int j = threadIdx.x; j < at.n; j += kConfig.threads) sum += expf(s[j] - shift);
  sum = block_reduce<kConfig.threads>(sum, Sum{});
  if (threadIdx.x != 0) return;
  // NOTE: not L alone: at logits of 1e8 its rounding error is larger than log(sum).
  a.statistics[2 * static_cast<i64>(blockIdx.x)] = shift;
  a.statistics[2 * static_cast<i64>(blockIdx.x) + 1] = sum == 0.0F ? 0.0F : 1.0F / sum;
  if (a.lse.data != nullptr) *textbook::at(a.lse, at.row) = shift + logf(sum);
}

template <Config kConfig>
void probabilities(const Args& a) {
  const Place at(a);
  const float* s = a.s + at.begin;
  const float shift = a.statistics[2 * static_cast<i64>(blockIdx.x)];
  const float factor = a.statistics[2 * static_cast<i64>(blockIdx.x) + 1];
  for (int j = threadIdx.x; j < at.n; j += kConfig.threads) {
    store<kConfig.storage>(a.p, at.begin + j, expf(s[j] - shift) * factor);
  }
}

__forceinline__ float row_d_lse(const Args& a, const Row& row) {
  return a.d_lse.data == nullptr ? 0.0F : *textbook::at(a.d_lse, row);
}

/// The row's LSE where it tells P better than a 16-bit P does: up to 512 its own rounding moves P
/// by less than half a unit of float16's last place. -inf where the stored P is the better one.
template <Config kConfig>
__forceinline__ float exact_lse(const Args& a, const Row& row) {
  if constexpr (kConfig.storage == textbook::Storage::float32) return -tile::infinity();
  const float lse = *textbook::at(a.lse, row);
  return fabsf(lse) <= 512.0F ? lse : -tile::infinity();
}
/// P as dS takes it, from the logit. In 16 bits P is rounded once where it is an operand; a second
/// rounding on the way to dS would show in dQ and dK.
template <Config kConfig>
__forceinline__ float row_probability(const Args& a, float logit, i64 at, float lse) {
  if constexpr (kConfig.storage != textbook::Storage::float32) {
    if (lse != -tile::infinity()) return expf(fminf(logit - lse, 0.0F));
  }
  return load<kConfig.storage>(a.p, at);
}

/// P * dP where P is not 0: a hidden key's dP may be anything.
__forceinline__ float weighted(float p, float dp) { return p == 0.0F ? 0.0F : p * dp; }

template <Config kConfig>
void row_delta(const Args& a) {
  const Place at(a);
  const float* dp = a.dp + at.begin;
  const float* s = a.s + at.begin;
  const float lse = exact_lse<kConfig>(a, at.row);
  float sum = 0.0F;
  for (int j = threadIdx.x; j < at.n; j += kConfig.threads) {
    sum += weighted(row_probability<kConfig>(a, s[j], at.begin + j, lse), dp[j]);
  }
  sum = block_reduce<kConfig.threads>(sum, Sum{});
  if (threadIdx.x == 0) a.delta[blockIdx.x] = sum - row_d_lse(a, at.row);
}

template <Config kConfig>
void score_gradient(const Args& a) {
  const Place at(a);
  float* dp = a.dp + at.begin;
  const float* s = a.s + at.begin;
  const float delta = a.delta[blockIdx.x];
  const float lse = exact_lse<kConfig>(a, at.row);
  for (int j = threadIdx.x; j < at.n; j += kConfig.threads) {
    dp[j] = weighted(row_probability<kConfig>(a, s[j], at.begin + j, lse), dp[j] - delta);
  }
}

/// d cap(x) / dx from t = cap(x) / c: 1 - t^2.
__forceinline__ float cap_slope(float t) { return 1.0F - t * t; }

/// Writes dS over dP in P's type. A chunk is written when all threads have read it: 16-bit rows lie
/// in the first half of what was read.
template <Config kConfig>
__forceinline__ void store_chunk(float* dp, int j, int n, float value) {
  if constexpr (kConfig.storage != textbook::Storage::float32) __syncthreads();
  if (j < n) store<kConfig.storage>(dp, j, value);
}

template <Config kConfig>
void scale_gradient(const Args& a) {
  const Place at(a);
  float* dp = a.dp + at.begin;
  const float* s = a.s + at.begin;
  const textbook::RowRule rule = textbook::row_rule(a.rule, at.row);
  for (int first = 0; first < at.n; first += kConfig.threads) {
    const int j = first + threadIdx.x;
    float value = 0.0F;
    if (j < at.n) {
      value = dp[j] * a.rule.scale;
      if (a.rule.softcap > 0.0F && value != 0.0F) {
        value *= cap_slope((s[j] - textbook::alibi_bias(rule, j)) / a.rule.softcap);
      }
    }
    store_chunk<kConfig>(dp, j, at.n, value);
  }
}

/// This thread's elements of a row that is kept in registers: change(k, j) for the k-th, j.
template <Config kConfig, class Change>
__forceinline__ void each_kept(int n, Change change) {
#pragma unroll
  for (int k = 0; k < kConfig.items; ++k) {
    const int j = k * kConfig.threads + threadIdx.x;
    if (j < n) change(k, j);
  }
}

/// The same for rows of any length, which are read again at each use: change(j).
template <Config kConfig, class Change>
__forceinline__ void each_read(int n, Change change) {
  for (int j = threadIdx.x; j < n; j += kConfig.threads) change(j);
}

__forceinline__ void store_lse(const Args& a, const Place& at, float shift, float sum) {
  if (threadIdx.x == 0 && a.lse.data != nullptr) *textbook::at(a.lse, at.row) = shift + logf(sum);
}

template <Config kConfig>
__forceinline__ void forward_kept(const Args& a, const Place& at) {
  const textbook::RowRule rule = textbook::row_rule(a.rule, at.row);
  const float* s = a.s + at.begin;
  float x[kConfig.items];
  // NOTE: a loop of its own, so that all loads are on their way before the first is used.
  each_kept<kConfig>(at.n, [&](int k, int j) { x[k] = s[j]; });
  float maximum = -tile::infinity();
  each_kept<kConfig>(at.n, [&](int k, int j) {
    x[k] = textbook::logit(a.rule, rule, x[k], j);
    maximum = fmaxf(maximum, x[k]);
  });
  const float shift = textbook::shift(block_reduce<kConfig.threads>(maximum, Max{}));
  float sum = 0.0F;
  each_kept<kConfig>(at.n, [&](int k, int) {
    x[k] = expf(x[k] - shift);
    sum += x[k];
  });
  sum = block_reduce<kConfig.threads>(sum, Sum{});
  const float factor = sum == 0.0F ? 0.0F : 1.0F / sum;
  each_kept<kConfig>(
      at.n, [&](int k, int j) { store<kConfig.storage>(a.p, at.begin + j, x[k] * factor); });
  store_lse(a, at, shift, sum);
}

template <Config kConfig>
__forceinline__ void forward_read(const Args& a, const Place& at) {
  const textbook::RowRule rule = textbook::row_rule(a.rule, at.row);
  const float* s = a.s + at.begin;
  const auto x = [&](int j) { return textbook::logit(a.rule, rule, s[j], j); };
  float maximum = -tile::infinity();
  each_read<kConfig>(at.n, [&](int j) { maximum = fmaxf(maximum, x(j)); });
  const float shift = textbook::shift(block_reduce<kConfig.threads>(maximum, Max{}));
  float sum = 0.0F;
  each_read<kConfig>(at.n, [&](int j) { sum += expf(x(j) - shift); });
  sum = block_reduce<kConfig.threads>(sum, Sum{});
  const float factor = sum == 0.0F ? 0.0F : 1.0F / sum;
  each_read<kConfig>(
      at.n, [&](int j) { store<kConfig.storage>(a.p, at.begin + j, expf(x(j) - shift) * factor); });
  store_lse(a, at, shift, sum);
}

template <Config kConfig>
void forward(const Args& a) {
  const Place at(a);
  if constexpr (kConfig.items > 0) {
    forward_kept<kConfig>(a, at);
  } else {
    forward_read<kConfig>(a, at);
  }
}

/// dY of one element, times scale and the slope of the cap.
__forceinline__ float gradient(const Args& a, const float* s, int j, float p, float dp,
                               float delta) {
  float value = weighted(p, dp - delta) * a.rule.scale;
  if (a.rule.softcap > 0.0F && value != 0.0F) {
    value *= cap_slope(tanhf(s[j] * a.rule.scale / a.rule.softcap));
  }
  return value;
}

/// row_probability() from the product.
template <Config kConfig>
__forceinline__ float product_probability(const Args& a, const textbook::RowRule& rule,
                                          const float* s, i64 begin, int j, float lse) {
  float logit = 0.0F;
  if constexpr (kConfig.storage != textbook::Storage::float32) {
    logit = textbook::logit(a.rule, rule, s[j], j);
  }
  return row_probability<kConfig>(a, logit, begin + j, lse);
}

template <Config kConfig>
__forceinline__ void backward_kept(const Args& a, const Place& at) {
  float* dp = a.dp + at.begin;
  const float* s = a.s + at.begin;
  const float lse = exact_lse<kConfig>(a, at.row);
  const textbook::RowRule rule = textbook::row_rule(a.rule, at.row);
  float p[kConfig.items], x[kConfig.items];
  each_kept<kConfig>(at.n, [&](int k, int j) {
    p[k] = product_probability<kConfig>(a, rule, s, at.begin, j, lse);
    x[k] = dp[j];
  });
  float sum = 0.0F;
  each_kept<kConfig>(at.n, [&](int k, int) { sum += weighted(p[k], x[k]); });
  // The reduction's barrier lies behind every read of the row, and before every store.
  const float delta = block_reduce<kConfig.threads>(sum, Sum{}) - row_d_lse(a, at.row);
  each_kept<kConfig>(at.n, [&](int k, int j) {
    store<kConfig.storage>(dp, j, gradient(a, s, j, p[k], x[k], delta));
  });
}

template <Config kConfig>
__forceinline__ void backward_read(const Args& a, const Place& at) {
  float* dp = a.dp + at.begin;
  const float* s = a.s + at.begin;
  const float lse = exact_lse<kConfig>(a, at.row);
  const textbook::RowRule rule = textbook::row_rule(a.rule, at.row);
  const auto p = [&](int j) { return product_probability<kConfig>(a, rule, s, at.begin, j, lse); };
  float sum = 0.0F;
  each_read<kConfig>(at.n, [&](int j) { sum += weighted(p(j), dp[j]); });
  const float delta = block_reduce<kConfig.threads>(sum, Sum{}) - row_d_lse(a, at.row);
  for (int first = 0; first < at.n; first += kConfig.threads) {
    const int j = first + threadIdx.x;
    store_chunk<kConfig>(dp, j, at.n, j < at.n ? gradient(a, s, j, p(j), dp[j], delta) : 0.0F);
  }
}

template <Config kConfig>
void backward(const Args& a) {
  const Place at(a);
  if constexpr (kConfig.items > 0) {
    backward_kept<kConfig>(a, at);
  } else {
    backward_read<kConfig>(a, at);
  }
}

}  // namespace tilewise::softmax_rows
