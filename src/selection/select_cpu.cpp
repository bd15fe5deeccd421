#include <cmath>
#include <numeric>
#include <vector>

#include "selection/elements.h"
#include "selection/largest.h"
#include "selection/shape.h"

namespace tilewise::selection {
namespace {

/// Statistics whose weight is not 0, of the blocks of one head: rows of `features` numbers.
class Pool {
 public:
  Pool(const PoolWeights& weights, std::int64_t head_dim) : head_dim_(head_dim) {
    for (const double w : {weights.mean, weights.maximum, weights.minimum, weights.variance})
      weights_.push_back(w);
    features_ = head_dim *
                std::count_if(weights_.begin(), weights_.end(), [](double w) { return w != 0.0; });
  }
  std::int64_t features() const { return features_; }

  /// `factor`: of a statistic beside its weight, where `weighs`.
  std::vector<float> blocks(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t tokens,
                            std::int64_t block, std::int64_t count, bool weighs,
                            double factor) const {
    std::vector<float> made(static_cast<std::size_t>(count * features_));
    const auto d = static_cast<std::size_t>(head_dim_);
    std::vector<double> sum(d), squares(d);
    std::vector<float> first(d), top(d), low(d);
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t begin = n * block, end = std::min(tokens, begin + block);
      if (begin >= end) break;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t at = b * t.strides[0] + h * t.strides[1] + i * t.strides[2];
        for (std::size_t c = 0; c < d; ++c) {
          const float x = element(t, at + static_cast<std::int64_t>(c) * t.strides[3]);
          if (i == begin) {
            first[c] = top[c] = low[c] = x;
            sum[c] = squares[c] = 0.0;
          }
          // From the first token on: what a variance is lost in a large mean would show.
          const double off = static_cast<double>(x) - static_cast<double>(first[c]);
          sum[c] += off;
          squares[c] += off * off;
          top[c] = std::max(top[c], x);
          low[c] = std::min(low[c], x);
        }
      }
      write(made.data() + n * features_, static_cast<double>(end - begin), sum, squares, first, top,
            low, weighs, factor);
    }
    return made;
  }

 private:
  std::int64_t head_dim_, features_ = 0;
  std::vector<double> weights_;

  void write(float* to, double tokens, const std::vector<double>& sum,
             const std::vector<double>& squares, const std::vector<float>& first,
             const std::vector<float>& top, const std::vector<float>& low, bool weighs,
             double factor) const {
    for (std::size_t s = 0; s < weights_.size(); ++s) {
      if (weights_[s] == 0.0) continue;
      const double scale = weighs ? weights_[s] * factor : 1.0;
      for (std::size_t c = 0; c < sum.size(); ++c) {
        const double off = sum[c] / tokens;
        const double x = s == 0   ? static_cast<double>(first[c]) + off
                         : s == 1 ? static_cast<double>(top[c])
                         : s == 2 ? static_cast<double>(low[c])
                                  : squares[c] / tokens - off * off;
        *to++ = static_cast<float>(scale * x);
      }
    }
  }
};

double dot(const float* x, const float* y, std::int64_t count) {
  double sum = 0.0;
  for (std::int64_t f = 0; f < count; ++f)
    sum += static_cast<double>(x[f]) * static_cast<double>(y[f]);
  return sum;
}

/// One row's choice among its candidates: 1 where taken.
class Chooser {
 public:
  Chooser(const Shape& s, const BlockSelection& by) : shape_(s), by_(by) {
    scores_.resize(static_cast<std::size_t>(s.columns));
  }

  /// score(j), of the candidates that a row has.
  template <class Score>
  void choose(const Score& score, std::int64_t keys, std::int64_t row, std::uint8_t* taken) {
    const Candidates c = candidates(shape_, by_, keys, row);
    choose_among(score, c.end, taken);
    keep(c, taken);
  }
  /// The rule alone, of `end` candidates.
  template <class Score>
  void choose_among(const Score& score, std::int64_t end, std::uint8_t* taken) {
    if (end == 0) return;
    scores_.resize(std::max(scores_.size(), static_cast<std::size_t>(end)));
    for (std::int64_t j = 0; j < end; ++j) {
      const double x = score(j);
      // A NaN is below all others.
      scores_[j] = std::isnan(x) ? -std::numeric_limits<double>::infinity() : x;
    }
    take(end, taken);
  }
  /// What is taken whatever the scores.
  void keep(const Candidates& c, std::uint8_t* taken) const {
    if (c.end == 0) return;
    if (by_.keep_first) taken[0] = 1;
    if (by_.keep_diagonal) {
      for (std::int64_t j = c.diagonal; j < c.diagonal_end; ++j) taken[j] = 1;
    }
  }

 private:
  const Shape& shape_;
  const BlockSelection& by_;
  std::vector<double> scores_;
  std::vector<std::int64_t> order_;

  void take(std::int64_t end, std::uint8_t* taken) {
    if (by_.rule == BlockRule::top_k)
      return take_largest(scores_.data(), end, by_.count, order_, taken);
    // Probabilities in the place of scores. Infinite scores share all of it.
    double top = *std::max_element(scores_.begin(), scores_.begin() + end), all = 0.0;
    if (std::isinf(top) && top < 0.0) top = 0.0;
    for (std::int64_t j = 0; j < end; ++j)
      all += scores_[j] = scores_[j] == top ? 1.0 : std::exp(scores_[j] - top);
    for (std::int64_t j = 0; j < end && all > 0.0; ++j) scores_[j] /= all;
    if (by_.rule == BlockRule::above) {
      for (std::int64_t j = 0; j < end; ++j) taken[j] = scores_[j] > by_.threshold ? 1 : 0;
      return;
    }
    order_.resize(static_cast<std::size_t>(end));
    std::iota(order_.begin(), order_.end(), std::int64_t{0});
    std::sort(order_.begin(), order_.end(), Larger<double>{scores_.data()});
    double before = 0.0;
    for (std::int64_t n = 0; n < end && before < by_.mass; ++n) {
      taken[order_[n]] = 1;
      before += scores_[order_[n]];
    }
  }
};

void write_list(const Shape& s, const std::uint8_t* mask, const Target& to) {
  std::int32_t at = 0;
  const std::int64_t heads = s.batch * s.heads_q;
  for (std::int64_t pair = 0; pair < heads; ++pair) {
    std::int32_t* offsets = to.row_offsets + pair * (s.rows + 1);
    for (std::int64_t row = 0; row < s.rows; ++row) {
      offsets[row] = at;
      const std::uint8_t* taken = mask + (pair * s.rows + row) * s.columns;
      for (std::int64_t j = 0; j < s.columns; ++j) {
        if (taken[j] != 0) to.block_index[at++] = static_cast<std::int32_t>(j);
      }
    }
    offsets[s.rows] = at;
  }
}

void by_pools(const Shape& s, const BlockSelection& by, std::uint8_t* mask, Executor& executor) {
  const Pool pool(by.weights, s.head_dim);
  const std::int64_t group = s.heads_q / s.heads_k, features = pool.features();
  std::vector<std::vector<float>> keys(static_cast<std::size_t>(s.batch * s.heads_k));
  executor.parallel_for(s.batch * s.heads_k, [&](std::int64_t task, int /*worker*/) {
    const std::int64_t b = task / s.heads_k, h = task % s.heads_k;
    keys[task] =
        pool.blocks(s.k, b, h, keys_of(s, by.key_lengths, b), by.block_k, s.columns, false, 1.0);
  });
  executor.parallel_for(s.batch * s.heads_q, [&](std::int64_t task, int /*worker*/) {
    const std::int64_t b = task / s.heads_q, h = task % s.heads_q;
    const std::vector<float> queries =
        pool.blocks(s.q, b, h, s.seq_q, by.block_q, s.rows, true, s.scale);
    const std::vector<float>& of_k = keys[b * s.heads_k + h / group];
    Chooser chooser(s, by);
    for (std::int64_t row = 0; row < s.rows; ++row) {
      const float* of_q = queries.data() + row * features;
      const auto score = [&](std::int64_t j) {
        return dot(of_q, of_k.data() + j * features, features);
      };
      chooser.choose(score, keys_of(s, by.key_lengths, b), row,
                     mask + (task * s.rows + row) * s.columns);
    }
  });
}

/// The scorers that look at tokens, of one query head.
class Scorer {
 public:
  Scorer(const Shape& s, const BlockSelection& by, std::int64_t task)
      : s_(s),
        by_(by),
        keys_(keys_of(s, by.key_lengths, task / s.heads_q)),
        shift_(keys_ - s.seq_q),
        q_(tokens(s.q, task / s.heads_q, task % s.heads_q, s.seq_q)),
        k_(tokens(s.k, task / s.heads_q, task % s.heads_q / (s.heads_q / s.heads_k), keys_)),
        chooser_(s, by) {}

  void by_antidiagonals(std::uint8_t* mask) {
    const std::int64_t stride = by_.stride, tiles = (keys_ + stride - 1) / stride;
    std::vector<double> logits(static_cast<std::size_t>(tiles));
    std::vector<double> sums(static_cast<std::size_t>(s_.columns));
    for (std::int64_t row = 0; row < s_.rows; ++row) {
      std::fill(sums.begin(), sums.end(), 0.0);
      const std::int64_t end = std::min((row + 1) * by_.block_q, s_.seq_q);
      for (std::int64_t first = row * by_.block_q; first < end; first += stride) {
        const std::int64_t last = std::min(first + stride, s_.seq_q) - 1 + shift_;
        const std::int64_t seen =
            by_.causal ? std::clamp<std::int64_t>(floor_div(last, stride) + 1, 0, tiles) : tiles;
        double top = -std::numeric_limits<double>::infinity(), all = 0.0;
        for (std::int64_t c = 0; c < seen; ++c) {
          logits[c] = antidiagonal(first, c * stride);
          top = std::max(top, logits[c]);
        }
        for (std::int64_t c = 0; c < seen; ++c) all += logits[c] = std::exp(logits[c] - top);
        for (std::int64_t c = 0; c < seen; ++c) sums[c * stride / by_.block_k] += logits[c] / all;
      }
      chooser_.choose([&](std::int64_t j) { return std::log(sums[j]); }, keys_, row,
                      mask + row * s_.columns);
    }
  }

  void by_lines(std::uint8_t* mask) {
    const Lines lines(s_, by_);
    std::vector<double> sums(static_cast<std::size_t>(lines.all())), p;
    for (std::int64_t i = s_.seq_q - lines.queries; i < s_.seq_q; ++i) add_query(i, lines, sums, p);
    std::vector<std::uint8_t> taken(sums.size());
    const auto score = [&](std::int64_t n) { return std::log(sums[n]); };
    chooser_.choose_among(score, (keys_ + by_.block_k - 1) / by_.block_k, taken.data());
    chooser_.choose_among([&](std::int64_t n) { return score(s_.columns + n); }, lines.distances(),
                          taken.data() + s_.columns);
    for (std::int64_t row = 0; row < s_.rows; ++row) {
      const Candidates c = candidates(s_, by_, keys_, row);
      const std::int64_t first = row * by_.block_q + shift_;
      const std::int64_t last = std::min((row + 1) * by_.block_q, s_.seq_q) - 1 + shift_;
      std::uint8_t* own = mask + row * s_.columns;
      for (std::int64_t j = 0; j < c.end; ++j) {
        own[j] = taken[j];
        const std::int64_t begin = j * by_.block_k;
        const std::int64_t end = std::min(begin + by_.block_k, keys_);
        const std::int64_t nearest = floor_div(first - (end - 1), by_.block_k);
        const std::int64_t farthest = floor_div(last - begin, by_.block_k);
        for (std::int64_t d = std::max(nearest, -s_.columns); d <= std::min(farthest, s_.columns);
             ++d) {
          if (taken[s_.columns + lines.number(d)] != 0) own[j] = 1;
        }
      }
      chooser_.keep(c, own);
    }
  }

 private:
  std::vector<float> tokens(const Tensor& t, std::int64_t b, std::int64_t h,
                            std::int64_t count) const {
    std::vector<float> rows(static_cast<std::size_t>(count * s_.head_dim));
    for (std::int64_t at = 0; at < count * s_.head_dim; ++at) {
      rows[at] = element(t, b * t.strides[0] + h * t.strides[1] + at / s_.head_dim * t.strides[2] +
                                at % s_.head_dim * t.strides[3]);
    }
    return rows;
  }
  double logit(std::int64_t i, std::int64_t j) const {
    return s_.scale * dot(q_.data() + i * s_.head_dim, k_.data() + j * s_.head_dim, s_.head_dim);
  }
  /// Over the tile whose first pair is (i, j).
  double antidiagonal(std::int64_t i, std::int64_t j) const {
    double sum = 0.0;
    for (std::int64_t u = 0; u < by_.stride; ++u) {
      const std::int64_t key = j + by_.stride - 1 - u;
      if (i + u < s_.seq_q && key < keys_) sum += logit(i + u, key);
    }
    return sum / static_cast<double>(by_.stride);
  }
  /// Adds the probabilities of query i.
  void add_query(std::int64_t i, const Lines& lines, std::vector<double>& sums,
                 std::vector<double>& p) const {
    const std::int64_t end =
        by_.causal ? std::clamp<std::int64_t>(i + shift_ + 1, 0, keys_) : keys_;
    if (end == 0) return;
    p.resize(static_cast<std::size_t>(end));
    for (std::int64_t j = 0; j < end; ++j) p[j] = logit(i, j);
    const double top = *std::max_element(p.begin(), p.end());
    double all = 0.0;
    for (double& x : p) all += x = std::exp(x - top);
    for (std::int64_t j = 0; j < end; ++j) {
      const std::int64_t distance = floor_div(i + shift_ - j, by_.block_k);
      sums[j / by_.block_k] += p[j] / all;
      sums[s_.columns + lines.number(distance)] += p[j] / all;
    }
  }

  const Shape& s_;
  const BlockSelection& by_;
  std::int64_t keys_, shift_;
  std::vector<float> q_, k_;
  Chooser chooser_;
};

}  // namespace

void select_on_cpu(const Shape& s, const BlockSelection& by, const Target& to, Executor& executor) {
  std::vector<std::uint8_t> own;
  std::uint8_t* mask = to.mask;
  if (mask == nullptr) {
    own.resize(static_cast<std::size_t>(s.all_rows() * s.columns));
    mask = own.data();
  }
  std::fill_n(mask, s.all_rows() * s.columns, std::uint8_t{0});
  if (by.scorer == BlockScorer::pooled) {
    by_pools(s, by, mask, executor);
  } else {
    executor.parallel_for(s.batch * s.heads_q, [&](std::int64_t task, int /*worker*/) {
      Scorer scorer(s, by, task);
      std::uint8_t* own_rows = mask + task * s.rows * s.columns;
      if (by.scorer == BlockScorer::antidiagonal) {
        scorer.by_antidiagonals(own_rows);
      } else {
        scorer.by_lines(own_rows);
      }
    });
  }
  if (to.mask == nullptr) write_list(s, mask, to);
}

}  // namespace tilewise::selection
