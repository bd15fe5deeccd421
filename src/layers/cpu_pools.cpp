/// The features that gates see.
#include <cmath>
#include <vector>

#include "layers/cpu_ops.h"
#include "layers/pools.h"

namespace tilewise::asam {
namespace {

/// Where `kept` holds the parts of pool_bins, of one sequence.
template <class T>
struct Kept {
  T *mean, *along, *sum;             ///< [dim], [tokens]: x_t . mean, [tokens]: sum of x_t
  T *bin_along, *bin_sum, *weights;  ///< [bins]
  Kept(T* kept, const TokenShape& s, std::int64_t b) {
    const std::int64_t bins = pool_bin_count(s.dim);
    mean = kept + b * (s.dim + 2 * s.tokens + 3 * bins);
    along = mean + s.dim;
    sum = along + s.tokens;
    bin_along = sum + s.tokens;
    bin_sum = bin_along + bins;
    weights = bin_sum + bins;
  }
};

template <class T>
void softmax(const T* x, T* y, std::int64_t count) {
  const T most = *std::max_element(x, x + count);
  T sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += y[i] = std::exp(x[i] - most);
  for (std::int64_t i = 0; i < count; ++i) y[i] /= sum;
}

/// Mean over window `w` of `window` tokens, of feature j; `count` tokens count.
template <class T>
T window_mean(const T* x, std::int64_t dim, std::int64_t count, std::int64_t window, std::int64_t w,
              std::int64_t j) {
  const std::int64_t end = std::min(count, (w + 1) * window);
  T sum = 0;
  for (std::int64_t i = w * window; i < end; ++i) sum += x[i * dim + j];
  return sum / static_cast<T>(end - w * window);
}

}  // namespace

template <class T>
void CpuOps<T>::pool_bins(const T* x, T* features, T* kept, TokenShape s) {
  const std::vector<Bin> bins = pool_bins_of(s.dim, s.tokens);
  const auto count = static_cast<std::int64_t>(bins.size());
  each(s.batch, 4 * s.tokens * s.dim, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const T* tokens = x + b * s.tokens * s.dim;
      const Kept<T> at(kept, s, b);
      std::fill_n(at.mean, s.dim, T{0});
      for (std::int64_t i = 0; i < s.tokens * s.dim; ++i) at.mean[i % s.dim] += tokens[i];
      for (std::int64_t j = 0; j < s.dim; ++j) at.mean[j] /= static_cast<T>(s.tokens);
      for (std::int64_t i = 0; i < s.tokens; ++i) {
        at.along[i] = at.sum[i] = 0;
        for (std::int64_t j = 0; j < s.dim; ++j) {
          at.along[i] += tokens[i * s.dim + j] * at.mean[j];
          at.sum[i] += tokens[i * s.dim + j];
        }
      }
      for (std::int64_t p = 0; p < count; ++p) {
        const Bin bin = bins[static_cast<std::size_t>(p)];
        at.bin_along[p] = at.bin_sum[p] = 0;
        for (std::int64_t i = bin.begin; i < bin.end; ++i) {
          at.bin_along[p] += at.along[i];
          at.bin_sum[p] += at.sum[i];
        }
        at.bin_along[p] /= static_cast<T>(bin.end - bin.begin);
        at.bin_sum[p] /= static_cast<T>(bin.end - bin.begin);
      }
      softmax(at.bin_along, at.weights, count);
      for (std::int64_t p = 0; p < count; ++p) {
        features[b * count + p] = at.weights[p] * at.bin_sum[p];
      }
    }
  });
}

template <class T>
void CpuOps<T>::pool_bins_backward(const T* x, const T* kept, const T* d_features, T* dx,
                                   TokenShape s) {
  const std::vector<Bin> bins = pool_bins_of(s.dim, s.tokens);
  const auto count = static_cast<std::int64_t>(bins.size());
  each(s.batch, 6 * s.tokens * s.dim, [&](std::int64_t begin, std::int64_t end) {
    std::vector<T> d_along(static_cast<std::size_t>(s.tokens));
    std::vector<T> d_sum(d_along.size()), d_mean(static_cast<std::size_t>(s.dim));
    for (std::int64_t b = begin; b < end; ++b) {
      const T* tokens = x + b * s.tokens * s.dim;
      const Kept<const T> at(kept, s, b);
      const T* df = d_features + b * count;
      std::fill(d_along.begin(), d_along.end(), T{0});
      std::fill(d_sum.begin(), d_sum.end(), T{0});
      std::fill(d_mean.begin(), d_mean.end(), T{0});
      T shared = 0;  // of softmax's backward
      for (std::int64_t p = 0; p < count; ++p) shared += at.weights[p] * df[p] * at.bin_sum[p];
      for (std::int64_t p = 0; p < count; ++p) {
        const Bin bin = bins[static_cast<std::size_t>(p)];
        const T share = at.weights[p] / static_cast<T>(bin.end - bin.begin);
        for (std::int64_t i = bin.begin; i < bin.end; ++i) {
          d_along[static_cast<std::size_t>(i)] += share * (df[p] * at.bin_sum[p] - shared);
          d_sum[static_cast<std::size_t>(i)] += share * df[p];
        }
      }
      for (std::int64_t i = 0; i < s.tokens; ++i) {
        for (std::int64_t j = 0; j < s.dim; ++j) {
          d_mean[static_cast<std::size_t>(j)] +=
              d_along[static_cast<std::size_t>(i)] * tokens[i * s.dim + j];
        }
      }
      for (std::int64_t i = 0; i < s.tokens; ++i) {
        for (std::int64_t j = 0; j < s.dim; ++j) {
          dx[(b * s.tokens + i) * s.dim + j] +=
              d_along[static_cast<std::size_t>(i)] * at.mean[j] +
              d_sum[static_cast<std::size_t>(i)] +
              d_mean[static_cast<std::size_t>(j)] / static_cast<T>(s.tokens);
        }
      }
    }
  });
}

template <class T>
void CpuOps<T>::pool_windows(const T* x, Lengths lengths, T* features, TokenShape s) {
  each(s.batch * s.dim, 6 * s.tokens, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      const std::int64_t b = at / s.dim, j = at % s.dim;
      const T* tokens = x + b * s.tokens * s.dim;
      T* out = features + b * kWindowFeatures * s.dim + j;
      const std::int64_t n = counted(lengths, b, s.tokens);
      if (n == 0) {
        for (std::int64_t f = 0; f < kWindowFeatures; ++f) out[f * s.dim] = 0;
        continue;
      }
      out[0] = window_mean(tokens, s.dim, n, n, 0, j);
      for (std::size_t k = 0; k < kPoolWindows.size(); ++k) {
        const std::int64_t windows = ceil_div(n, kPoolWindows[k]);
        std::vector<T> means(static_cast<std::size_t>(windows));
        T mean = 0, variance = 0;
        for (std::int64_t w = 0; w < windows; ++w) {
          mean += means[static_cast<std::size_t>(w)] =
              window_mean(tokens, s.dim, n, kPoolWindows[k], w, j);
        }
        mean /= static_cast<T>(windows);
        for (const T m : means) variance += (m - mean) * (m - mean);
        out[(2 * static_cast<std::int64_t>(k) + 1) * s.dim] =
            *std::max_element(means.begin(), means.end());
        out[(2 * static_cast<std::int64_t>(k) + 2) * s.dim] = variance / static_cast<T>(windows);
      }
    }
  });
}

template <class T>
void CpuOps<T>::pool_windows_backward(const T* x, Lengths lengths, const T*, const T* d_features,
                                      T* dx, TokenShape s) {
  each(s.batch * s.dim, 10 * s.tokens, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      const std::int64_t b = at / s.dim, j = at % s.dim;
      const T* tokens = x + b * s.tokens * s.dim;
      T* out = dx + b * s.tokens * s.dim + j;
      const T* df = d_features + b * kWindowFeatures * s.dim + j;
      const std::int64_t n = counted(lengths, b, s.tokens);
      for (std::int64_t i = 0; i < n; ++i) out[i * s.dim] += df[0] / static_cast<T>(n);
      for (std::size_t k = 0; n > 0 && k < kPoolWindows.size(); ++k) {
        const T d_most = df[(2 * static_cast<std::int64_t>(k) + 1) * s.dim];
        const T d_variance = df[(2 * static_cast<std::int64_t>(k) + 2) * s.dim];
        const std::int64_t window = kPoolWindows[k], windows = ceil_div(n, window);
        std::vector<T> means(static_cast<std::size_t>(windows));
        T mean = 0;
        for (std::int64_t w = 0; w < windows; ++w) {
          mean += means[static_cast<std::size_t>(w)] = window_mean(tokens, s.dim, n, window, w, j);
        }
        mean /= static_cast<T>(windows);
        const std::int64_t highest = std::max_element(means.begin(), means.end()) - means.begin();
        for (std::int64_t i = 0; i < n; ++i) {
          const std::int64_t w = i / window;
          const T inside = static_cast<T>(std::min(n, (w + 1) * window) - w * window);
          T d = d_variance * 2 * (means[static_cast<std::size_t>(w)] - mean) /
                static_cast<T>(windows);
          if (w == highest) d += d_most;
          out[i * s.dim] += d / inside;
        }
      }
    }
  });
}

template void CpuOps<float>::pool_bins(const float*, float*, float*, TokenShape);
template void CpuOps<double>::pool_bins(const double*, double*, double*, TokenShape);
template void CpuOps<float>::pool_bins_backward(const float*, const float*, const float*, float*,
                                                TokenShape);
template void CpuOps<double>::pool_bins_backward(const double*, const double*, const double*,
                                                 double*, TokenShape);
template void CpuOps<float>::pool_windows(const float*, Lengths, float*, TokenShape);
template void CpuOps<double>::pool_windows(const double*, Lengths, double*, TokenShape);
template void CpuOps<float>::pool_windows_backward(const float*, Lengths, const float*,
                                                   const float*, float*, TokenShape);
template void CpuOps<double>::pool_windows_backward(const double*, Lengths, const double*,
                                                    const double*, double*, TokenShape);

}  // namespace tilewise::asam
