/// Scores of blocks and their gradients: statistics of blocks, weighed and multiplied.
#include <array>
#include <limits>
#include <vector>

#include "selection/elements.h"

namespace tilewise::selection {
namespace {

constexpr std::size_t kStatistics = 4;
std::array<double, kStatistics> weights_of(const PoolWeights& w) {
  return {w.mean, w.maximum, w.minimum, w.variance};
}

/// Mean, maximum, minimum and variance of the blocks of one head: (blocks, 4, dim).
class Statistics {
 public:
  Statistics(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t tokens,
             std::int64_t block, std::int64_t blocks)
      : t_(t), first_(b * t.strides[0] + h * t.strides[1]), tokens_(tokens), block_(block) {
    const std::int64_t dim = t.sizes[3];
    values_.resize(static_cast<std::size_t>(blocks * 4 * dim));
    for (std::int64_t n = 0; n < blocks && n * block < tokens; ++n) {
      for (std::int64_t e = 0; e < dim; ++e) fill(n, e);
    }
  }
  const double* of(std::int64_t block) const { return values_.data() + block * 4 * t_.sizes[3]; }

  /// Adds to `to`, which has the shape of t, what the gradient of a block's statistics gives.
  void backward(std::int64_t n, const double* d, const Tensor& to, std::int64_t b,
                std::int64_t h) const {
    const std::int64_t dim = t_.sizes[3], begin = n * block_, end = end_of(n);
    const double count = static_cast<double>(end - begin);
    const double* values = of(n);
    for (std::int64_t e = 0; e < dim; ++e) {
      bool highest = true, lowest = true;
      for (std::int64_t i = begin; i < end; ++i) {
        const double x = at(i, e);
        double dx = (d[e] + 2.0 * d[3 * dim + e] * (x - values[e])) / count;
        if (highest && x == values[dim + e]) dx += d[dim + e], highest = false;
        if (lowest && x == values[2 * dim + e]) dx += d[2 * dim + e], lowest = false;
        static_cast<float*>(to.data)[b * to.strides[0] + h * to.strides[1] + i * to.strides[2] +
                                     e * to.strides[3]] += static_cast<float>(dx);
      }
    }
  }

 private:
  const Tensor& t_;
  std::int64_t first_, tokens_, block_;
  std::vector<double> values_;

  std::int64_t end_of(std::int64_t n) const { return std::min(tokens_, (n + 1) * block_); }
  double at(std::int64_t i, std::int64_t e) const {
    return static_cast<double>(element(t_, first_ + i * t_.strides[2] + e * t_.strides[3]));
  }
  void fill(std::int64_t n, std::int64_t e) {
    const std::int64_t dim = t_.sizes[3], begin = n * block_, end = end_of(n);
    const double count = static_cast<double>(end - begin), first = at(begin, e);
    double sum = 0.0, squares = 0.0, highest = first, lowest = first;
    for (std::int64_t i = begin; i < end; ++i) {
      const double x = at(i, e);
      sum += x - first;  // a large mean hides no variance
      squares += (x - first) * (x - first);
      highest = std::max(highest, x);
      lowest = std::min(lowest, x);
    }
    double* to = values_.data() + n * 4 * dim + e;
    const double off = sum / count;
    to[0] = first + off;
    to[dim] = highest;
    to[2 * dim] = lowest;
    to[3 * dim] = squares / count - off * off;
  }
};

/// One query head: its statistics and its keys'.
struct Head {
  std::int64_t b, h, of_keys, keys;
  Statistics q, k;
  Head(const Shape& s, const BlockSelection& by, std::int64_t task)
      : b(task / s.heads_q),
        h(task % s.heads_q),
        of_keys(h / (s.heads_q / s.heads_k)),
        keys(keys_of(s, by.key_lengths, b)),
        q(s.q, b, h, s.seq_q, by.block_q, s.rows),
        k(s.k, b, of_keys, keys, by.block_k, s.columns) {}
};

}  // namespace

void score_on_cpu(const Shape& s, const BlockSelection& by, float* scores, Executor& executor) {
  const auto weights = weights_of(by.weights);
  executor.parallel_for(s.batch * s.heads_q, [&](std::int64_t task, int /*worker*/) {
    const Head head(s, by, task);
    for (std::int64_t row = 0; row < s.rows; ++row) {
      float* to = scores + (task * s.rows + row) * s.columns;
      std::fill_n(to, s.columns, -std::numeric_limits<float>::infinity());
      for (std::int64_t j = 0; j < candidates(s, by, head.keys, row).end; ++j) {
        const double *q = head.q.of(row), *k = head.k.of(j);
        double sum = 0.0;
        for (std::size_t n = 0; n < kStatistics; ++n) {
          double dot = 0.0;
          for (std::int64_t e = 0; e < s.head_dim; ++e) dot += *q++ * *k++;
          if (weights[n] != 0.0) sum += weights[n] * dot;
        }
        to[j] = static_cast<float>(s.scale * sum);
      }
    }
  });
}

void score_backward_on_cpu(const Shape& s, const BlockSelection& by, const ScoreGradients& to,
                           Executor& executor) {
  const auto weights = weights_of(by.weights);
  const std::int64_t group = s.heads_q / s.heads_k, width = 4 * s.head_dim;
  // One task for the query heads of a key head: they add to the same dk.
  executor.parallel_for(s.batch * s.heads_k, [&](std::int64_t task, int /*worker*/) {
    const std::int64_t b = task / s.heads_k, of_keys = task % s.heads_k;
    for (std::int64_t h = of_keys * group; h < (of_keys + 1) * group; ++h) {
      const std::int64_t pair = b * s.heads_q + h;
      const Head head(s, by, pair);
      std::vector<double> dk(static_cast<std::size_t>(s.columns * width));
      std::vector<double> dq(static_cast<std::size_t>(width));
      for (std::int64_t row = 0; row < s.rows; ++row) {
        std::fill(dq.begin(), dq.end(), 0.0);
        const float* d = to.d_scores + (pair * s.rows + row) * s.columns;
        for (std::int64_t j = 0; j < candidates(s, by, head.keys, row).end; ++j) {
          const double *q = head.q.of(row), *k = head.k.of(j);
          for (std::int64_t at = 0; at < width; ++at) {
            const double weight = weights[static_cast<std::size_t>(at / s.head_dim)];
            if (weight == 0.0) continue;
            const double share = static_cast<double>(d[j]) * s.scale * weight;
            dq[static_cast<std::size_t>(at)] += share * k[at];
            dk[static_cast<std::size_t>(j * width + at)] += share * q[at];
          }
        }
        head.q.backward(row, dq.data(), to.dq, b, h);
      }
      for (std::int64_t j = 0; j * by.block_k < head.keys; ++j) {
        head.k.backward(j, dk.data() + j * width, to.dk, b, of_keys);
      }
    }
  });
}

}  // namespace tilewise::selection
