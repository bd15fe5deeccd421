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

#include "cuda/kernels/softmax_rows_args.h"
#include "cuda/kernels/textbook.cuh"

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

/// P * dP where P is not 0: a hidden key's dP may be anything.
__forceinline__ float weighted(float p, float dp) { return p == 0.0F ? 0.0F : p * dp; }

template <Config kConfig>
void row_delta(const Args& a) {
  const Place at(a);
  const float* dp = a.dp + at.begin;
  float sum = 0.0F;
  for (int j = threadIdx.x; j < at.n; j += kConfig.threads) {
    sum += weighted(load<kConfig.storage>(a.p, at.begin + j), dp[j]);
  }
  sum = block_reduce<kConfig.threads>(sum, Sum{});
  if (threadIdx.x == 0) a.delta[blockIdx.x] = sum - row_d_lse(a, at.row);
}

template <Config kConfig>
void score_gradient(const Args& a) {
  const Place at(a);
  float* dp = a.dp + at.begin;
  const float delta = a.delta[blockIdx.x];
  for (int j = threadIdx.x; j < at.n; j += kConfig.threads) {
    dp[j] = weighted(load<kConfig.storage>(a.p, at.begin + j), dp[j] - delta);
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

/// A row spread over the block: in registers, or read again at each use when it is too long for
/// them.
template <Config kConfig, class Read>
struct SpreadRow {
  static constexpr int kItems = kConfig.items;
  Read read;
  int n;
  float kept[kItems > 0 ? kItems : 1];

  __forceinline__ SpreadRow(Read read_element, int count) : read(read_element), n(count) {
    if constexpr (kItems > 0) {
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        const int j = k * kConfig.threads + threadIdx.x;
        if (j < n) kept[k] = read(j);
      }
    }
  }

  /// change(k, j, element) for this thread's k-th element j, all of them; what it leaves in
  /// `element` stays while rows are kept.
  template <class Change>
  __forceinline__ void each(Change change) {
    if constexpr (kItems > 0) {
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        const int j = k * kConfig.threads + threadIdx.x;
        if (j < n) change(k, j, kept[k]);
      }
    } else {
      for (int j = threadIdx.x; j < n; j += kConfig.threads) {
        float element = read(j);
        change(0, j, element);
      }
    }
  }
};

template <Config kConfig>
void forward(const Args& a) {
  constexpr bool kKept = kConfig.items > 0;
  const Place at(a);
  const textbook::RowRule rule = textbook::row_rule(a.rule, at.row);
  const float* s = a.s + at.begin;
  const auto read = [&](int j) { return textbook::logit(a.rule, rule, s[j], j); };
  SpreadRow<kConfig, decltype(read)> row(read, at.n);
  float maximum = -tile::infinity();
  row.each([&](int, int, float& x) { maximum = fmaxf(maximum, x); });
  const float shift = textbook::shift(block_reduce<kConfig.threads>(maximum, Max{}));
  float sum = 0.0F;
  row.each([&](int, int, float& x) {
    x = expf(x - shift);
    sum += x;
  });
  sum = block_reduce<kConfig.threads>(sum, Sum{});
  const float factor = sum == 0.0F ? 0.0F : 1.0F / sum;
  row.each([&](int, int j, float& x) {
    const float e = kKept ? x : expf(x - shift);
    store<kConfig.storage>(a.p, at.begin + j, e * factor);
  });
  if (threadIdx.x == 0 && a.lse.data != nullptr) {
    *textbook::at(a.lse, at.row) = shift + logf(sum);
  }
}

template <Config kConfig>
void backward(const Args& a) {
  constexpr bool kKept = kConfig.items > 0;
  const Place at(a);
  float* dp = a.dp + at.begin;
  const float* s = a.s + at.begin;
  const auto read_p = [&](int j) { return load<kConfig.storage>(a.p, at.begin + j); };
  const auto read_dp = [&](int j) { return dp[j]; };
  SpreadRow<kConfig, decltype(read_p)> p(read_p, at.n);
  SpreadRow<kConfig, decltype(read_dp)> row(read_dp, at.n);
  const auto probability = [&](int k, int j) {
    if constexpr (kKept) {
      return p.kept[k];
    } else {
      return read_p(j);
    }
  };
  float sum = 0.0F;
  row.each([&](int k, int j, float& x) { sum += weighted(probability(k, j), x); });
  const float delta = block_reduce<kConfig.threads>(sum, Sum{}) - row_d_lse(a, at.row);
  const auto gradient = [&](int k, int j, float x) {
    float value = weighted(probability(k, j), x - delta) * a.rule.scale;
    if (a.rule.softcap > 0.0F && value != 0.0F) {
      value *= cap_slope(tanhf(s[j] * a.rule.scale / a.rule.softcap));
    }
    return value;
  };
  if constexpr (kKept) {
    // The reduction's barrier lies behind every read of the row.
    row.each([&](int k, int j, float& x) { store<kConfig.storage>(dp, j, gradient(k, j, x)); });
  } else {
    for (int first = 0; first < at.n; first += kConfig.threads) {
      const int j = first + threadIdx.x;
      store_chunk<kConfig>(dp, j, at.n, j < at.n ? gradient(0, j, dp[j]) : 0.0F);
    }
  }
}

}  // namespace tilewise::softmax_rows
