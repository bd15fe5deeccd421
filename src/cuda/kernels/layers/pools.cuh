/// layer_steps, the features that gates see: src/layers/pools.h says how sequences are cut.
#pragma once

#include "cuda/kernels/layers/steps.cuh"

namespace tilewise::layer_steps {

/// Where `kept` holds the parts of a sequence.
struct KeptBins {
  float *mean, *along, *sum, *bin_along, *bin_sum, *weights;
  __forceinline__ KeptBins(const BinArgs& a, i64 b) {
    const Tokens& s = a.shape;
    mean = a.kept + b * (s.dim + 2 * static_cast<i64>(s.tokens) + 3 * a.bins);
    along = mean + s.dim;
    sum = along + s.tokens;
    bin_along = sum + s.tokens;
    bin_sum = bin_along + a.bins;
    weights = bin_sum + a.bins;
  }
};

/// First token and the one after the last of bin p.
struct BinRange {
  i64 begin, end;
  __forceinline__ BinRange(const BinArgs& a, int p) {
    int count = a.shape.dim;
    for (int scale = 0; p >= max(1, a.shape.dim >> scale); ++scale) {
      p -= max(1, a.shape.dim >> scale);
      count = max(1, a.shape.dim >> (scale + 1));
    }
    begin = static_cast<i64>(p) * a.shape.tokens / count;
    end = (static_cast<i64>(p + 1) * a.shape.tokens + count - 1) / count;
  }
  __forceinline__ float count() const { return static_cast<float>(end - begin); }
};

/// One block: kColumns features of a sequence, their mean over tokens.
template <Config>
__forceinline__ void bin_means(const BinArgs& a) {
  const Tokens& s = a.shape;
  const int groups = (s.dim + kColumns - 1) / kColumns;
  const i64 b = blockIdx.x / groups;
  const int col = static_cast<int>(blockIdx.x) % groups * kColumns + threadIdx.x % kColumns;
  float sum = 0.0F;
  if (col < s.dim) {
    for (int i = threadIdx.x / kColumns; i < s.tokens; i += kThreads / kColumns) {
      sum += a.x[(b * s.tokens + i) * s.dim + col];
    }
  }
  sum = sum_of_rows(sum);
  if (threadIdx.x >= kColumns || col >= s.dim) return;
  KeptBins(a, b).mean[col] = sum / static_cast<float>(s.tokens);
}

/// One block: one token.
template <Config>
__forceinline__ void bin_tokens(const BinArgs& a) {
  const Tokens& s = a.shape;
  const i64 row = blockIdx.x;
  const KeptBins at(a, row / s.tokens);
  float along = 0.0F, sum = 0.0F;
  for (int j = threadIdx.x; j < s.dim; j += kThreads) {
    const float x = a.x[row * s.dim + j];
    along += x * at.mean[j];
    sum += x;
  }
  along = sum_of_block(along);
  sum = sum_of_block(sum);
  if (threadIdx.x != 0) return;
  at.along[row % s.tokens] = along;
  at.sum[row % s.tokens] = sum;
}

/// One block: one sequence.
template <Config>
__forceinline__ void bin_features(const BinArgs& a) {
  const i64 b = blockIdx.x;
  const KeptBins at(a, b);
  float most = -tile::infinity();
  for (int p = threadIdx.x; p < a.bins; p += kThreads) {
    const BinRange bin(a, p);
    float along = 0.0F, sum = 0.0F;
    for (i64 i = bin.begin; i < bin.end; ++i) {
      along += at.along[i];
      sum += at.sum[i];
    }
    at.bin_along[p] = along / bin.count();
    at.bin_sum[p] = sum / bin.count();
    most = fmaxf(most, at.bin_along[p]);
  }
  most = block_reduce<kThreads>(most, Max{});
  float total = 0.0F;
  for (int p = threadIdx.x; p < a.bins; p += kThreads) total += expf(at.bin_along[p] - most);
  total = sum_of_block(total);
  for (int p = threadIdx.x; p < a.bins; p += kThreads) {
    at.weights[p] = expf(at.bin_along[p] - most) / total;
    a.features[b * a.bins + p] = at.weights[p] * at.bin_sum[p];
  }
}

/// One block: one sequence, its tokens' gradients of x . mean and of the sum.
template <Config>
__forceinline__ void bin_tokens_backward(const BinArgs& a) {
  const Tokens& s = a.shape;
  const i64 b = blockIdx.x;
  const KeptBins at(a, b);
  const float* df = a.d_features + b * a.bins;
  float* d_along = a.d_tokens + b * (2 * static_cast<i64>(s.tokens) + s.dim);
  float* d_sum = d_along + s.tokens;
  float shared = 0.0F;
  for (int p = threadIdx.x; p < a.bins; p += kThreads) {
    shared += at.weights[p] * df[p] * at.bin_sum[p];
  }
  shared = sum_of_block(shared);
  for (int t = threadIdx.x; t < s.tokens; t += kThreads) {
    float along = 0.0F, sum = 0.0F;
    int first = 0;
    for (int scale = 0; scale < a.scales; ++scale) {
      // The bins of this scale that hold token t: floor(i n / c) <= t < ceil((i + 1) n / c).
      const i64 count = max(1, s.dim >> scale);
      const i64 low = t * count / s.tokens;
      const i64 high = min(count - 1, ((t + 1) * count - 1) / s.tokens);
      for (i64 i = low; i <= high; ++i) {
        const int p = first + static_cast<int>(i);
        const float share = at.weights[p] / BinRange(a, p).count();
        along += share * (df[p] * at.bin_sum[p] - shared);
        sum += share * df[p];
      }
      first += static_cast<int>(count);
    }
    d_along[t] = along;
    d_sum[t] = sum;
  }
}

/// One block: kColumns features of a sequence, the gradient of their mean.
template <Config>
__forceinline__ void bin_means_backward(const BinArgs& a) {
  const Tokens& s = a.shape;
  const int groups = (s.dim + kColumns - 1) / kColumns;
  const i64 b = blockIdx.x / groups;
  const int col = static_cast<int>(blockIdx.x) % groups * kColumns + threadIdx.x % kColumns;
  float* d_along = a.d_tokens + b * (2 * static_cast<i64>(s.tokens) + s.dim);
  float sum = 0.0F;
  if (col < s.dim) {
    for (int i = threadIdx.x / kColumns; i < s.tokens; i += kThreads / kColumns) {
      sum += d_along[i] * a.x[(b * s.tokens + i) * s.dim + col];
    }
  }
  sum = sum_of_rows(sum);
  if (threadIdx.x >= kColumns || col >= s.dim) return;
  d_along[2 * s.tokens + col] = sum;
}

template <Config>
__forceinline__ void bin_inputs_backward(const BinArgs& a) {
  const Tokens& s = a.shape;
  each(static_cast<i64>(s.batch) * s.tokens * s.dim, [&](i64 i) {
    const i64 row = i / s.dim, b = row / s.tokens, t = row % s.tokens, j = i % s.dim;
    const float* d_along = a.d_tokens + b * (2 * static_cast<i64>(s.tokens) + s.dim);
    a.dx[i] += d_along[t] * KeptBins(a, b).mean[j] + d_along[s.tokens + t] +
               d_along[2 * s.tokens + j] / static_cast<float>(s.tokens);
  });
}

/// A number of each row of a block's threads for one feature; every thread gets its column's sum.
__forceinline__ float column_sum(float x) {
  __shared__ float parts[kThreads];
  __syncthreads();  // readers of the last sum are done
  parts[threadIdx.x] = x;
  __syncthreads();
  float sum = 0.0F;
  for (int row = 0; row < kThreads / kColumns; ++row) {
    sum += parts[row * kColumns + threadIdx.x % kColumns];
  }
  return sum;
}

/// The largest of a column's numbers and where it is, the first of those that are equal.
struct Highest {
  float value;
  int at;
};
__forceinline__ Highest column_highest(Highest mine) {
  __shared__ float values[kThreads];
  __shared__ int places[kThreads];
  __syncthreads();  // readers of the last one are done
  values[threadIdx.x] = mine.value;
  places[threadIdx.x] = mine.at;
  __syncthreads();
  Highest best{-tile::infinity(), 0x7fffffff};
  for (int row = 0; row < kThreads / kColumns; ++row) {
    const float value = values[row * kColumns + threadIdx.x % kColumns];
    const int at = places[row * kColumns + threadIdx.x % kColumns];
    if (value > best.value || (value == best.value && at < best.at)) best = {value, at};
  }
  return best;
}

/// One block: kColumns features of a sequence. A row of threads takes groups of 64 tokens, so that
/// it sees whole windows.
template <Config>
__forceinline__ void pool_windows(const WindowArgs& a) {
  const Tokens& s = a.shape;
  const int groups = (s.dim + kColumns - 1) / kColumns;
  const i64 b = blockIdx.x / groups;
  const int col = static_cast<int>(blockIdx.x) % groups * kColumns + threadIdx.x % kColumns;
  const bool there = col < s.dim;
  const int count = counted(s.lengths, b, s.tokens);
  const float* x = a.x + b * s.tokens * s.dim + col;
  // body(k, w, mean): window w of kWindows[k] tokens.
  const auto each_window = [&](const auto& body) {
    for (int begin = static_cast<int>(threadIdx.x) / kColumns * 64; there && begin < count;
         begin += kThreads / kColumns * 64) {
      float sum8 = 0.0F, sum64 = 0.0F;
      const int end = min(begin + 64, count);
      for (int i = begin; i < end; ++i) {
        const float value = x[static_cast<i64>(i) * s.dim];
        body(0, i, value);
        sum8 += value;
        if (i % 8 != 7 && i + 1 != end) continue;
        body(1, i / 8, sum8 / static_cast<float>(i % 8 + 1));
        sum64 += sum8;
        sum8 = 0.0F;
      }
      body(2, begin / 64, sum64 / static_cast<float>(end - begin));
    }
  };
  float sums[3] = {}, squares[3] = {}, all = 0.0F;
  Highest highest[3];
  for (Highest& h : highest) h = {-tile::infinity(), 0x7fffffff};
  each_window([&](int k, int w, float mean) {
    sums[k] += mean;
    if (mean > highest[k].value) highest[k] = {mean, w};
  });
  all = column_sum(sums[0]) / static_cast<float>(max(count, 1));
  float means[3];
  for (int k = 0; k < 3; ++k) {
    const int windows = (max(count, 1) + kWindows[k] - 1) / kWindows[k];
    means[k] = column_sum(sums[k]) / static_cast<float>(windows);
    highest[k] = column_highest(highest[k]);
  }
  each_window([&](int k, int, float mean) { squares[k] += (mean - means[k]) * (mean - means[k]); });
  for (float& square : squares) square = column_sum(square);
  if (threadIdx.x >= kColumns || !there) return;
  float* out = a.features + b * kWindowFeatures * s.dim + col;
  out[0] = all;
  for (int k = 0; k < 3; ++k) {
    const int windows = (max(count, 1) + kWindows[k] - 1) / kWindows[k];
    out[(2 * k + 1) * s.dim] = count > 0 ? highest[k].value : 0.0F;
    out[(2 * k + 2) * s.dim] = squares[k] / static_cast<float>(windows);
    a.means[(b * 3 + k) * s.dim + col] = means[k];
    a.highest[(b * 3 + k) * s.dim + col] = highest[k].at;
  }
}

/// One block: 64 tokens of kColumns features; a row of threads takes eight tokens. Eight rows.
template <Config>
__forceinline__ void pool_windows_backward(const WindowArgs& a) {
  static_assert(kThreads / kColumns == 8);
  const Tokens& s = a.shape;
  const int columns = (s.dim + kColumns - 1) / kColumns, spans = (s.tokens + 63) / 64;
  const i64 b = blockIdx.x / (columns * spans);
  const int span = static_cast<int>(blockIdx.x) / columns % spans;
  const int col = static_cast<int>(blockIdx.x) % columns * kColumns + threadIdx.x % kColumns;
  const bool there = col < s.dim;
  const int count = counted(s.lengths, b, s.tokens);
  const int begin = span * 64 + static_cast<int>(threadIdx.x) / kColumns * 8;
  const int end = min(begin + 8, count);
  float sum = 0.0F;
  for (int i = begin; there && i < end; ++i) sum += a.x[(b * s.tokens + i) * s.dim + col];
  const float sum64 = column_sum(sum);
  if (!there) return;
  const float* df = a.d_features + b * kWindowFeatures * s.dim + col;
  for (int i = begin; i < end; ++i) {
    const i64 at = (b * s.tokens + i) * s.dim + col;
    float d = df[0] / static_cast<float>(count);
    for (int k = 0; k < 3; ++k) {
      const int w = i / kWindows[k];
      const int inside = min(count, (w + 1) * kWindows[k]) - w * kWindows[k];
      const float total = k == 0 ? a.x[at] : k == 1 ? sum : sum64;
      const float mean = total / static_cast<float>(inside);
      const int windows = (count + kWindows[k] - 1) / kWindows[k];
      float of_mean = 2.0F * df[(2 * k + 2) * s.dim] * (mean - a.means[(b * 3 + k) * s.dim + col]) /
                      static_cast<float>(windows);
      if (w == a.highest[(b * 3 + k) * s.dim + col]) of_mean += df[(2 * k + 1) * s.dim];
      d += of_mean / static_cast<float>(inside);
    }
    a.dx[at] += d;
  }
}

}  // namespace tilewise::layer_steps
