#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "selection/largest.h"
#include "selection/shape.h"

namespace tilewise::selection {
namespace {

float from_half(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16, exponent = bits >> 10 & 0x1fU;
  const std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0) {
    const float x = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -x : x;
  }
  const std::uint32_t high = exponent == 31 ? 0xffU : exponent + 112;
  return std::bit_cast<float>(sign | high << 23 | fraction << 13);
}

float element(const Tensor& t, std::int64_t at) {
  switch (t.dtype) {
    case DType::bfloat16:
      return std::bit_cast<float>(std::uint32_t{static_cast<const std::uint16_t*>(t.data)[at]}
                                  << 16);
    case DType::float16:
      return from_half(static_cast<const std::uint16_t*>(t.data)[at]);
    case DType::float64:
      return static_cast<float>(static_cast<const double*>(t.data)[at]);
    default:
      return static_cast<const float*>(t.data)[at];
  }
}

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

/// One row's choice among its candidates: 1 where taken.
class Chooser {
 public:
  Chooser(const Shape& s, const BlockSelection& by) : shape_(s), by_(by) {
    scores_.resize(static_cast<std::size_t>(s.columns));
  }

  void choose(const float* q, const float* k, std::int64_t features, std::int64_t keys,
              std::int64_t row, std::uint8_t* taken) {
    std::fill_n(taken, shape_.columns, std::uint8_t{0});
    const Candidates c = candidates(shape_, by_, keys, row);
    if (c.end == 0) return;
    for (std::int64_t j = 0; j < c.end; ++j) {
      double dot = 0.0;
      for (std::int64_t f = 0; f < features; ++f)
        dot += static_cast<double>(q[f]) * static_cast<double>(k[j * features + f]);
      // A NaN is below all others.
      scores_[j] = std::isnan(dot) ? -std::numeric_limits<double>::infinity() : dot;
    }
    take(c.end, taken);
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
    // Probabilities in the place of scores.
    double top = *std::max_element(scores_.begin(), scores_.begin() + end);
    if (std::isinf(top)) top = 0.0;
    double all = 0.0;
    for (std::int64_t j = 0; j < end; ++j) all += scores_[j] = std::exp(scores_[j] - top);
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

std::int64_t keys_of(const Shape& s, const BlockSelection& by, std::int64_t b) {
  if (!by.key_lengths.defined()) return s.seq_k;
  const auto* lengths = static_cast<const std::int32_t*>(by.key_lengths.data);
  return std::clamp<std::int64_t>(lengths[b * by.key_lengths.strides[0]], 0, s.seq_k);
}

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

}  // namespace

void select_on_cpu(const Shape& s, const BlockSelection& by, const Target& to, Executor& executor) {
  const Pool pool(by.weights, s.head_dim);
  const std::int64_t group = s.heads_q / s.heads_k, features = pool.features();
  std::vector<std::vector<float>> keys(static_cast<std::size_t>(s.batch * s.heads_k));
  executor.parallel_for(s.batch * s.heads_k, [&](std::int64_t task, int /*worker*/) {
    const std::int64_t b = task / s.heads_k, h = task % s.heads_k;
    keys[task] = pool.blocks(s.k, b, h, keys_of(s, by, b), by.block_k, s.columns, false, 1.0);
  });
  std::vector<std::uint8_t> own;
  std::uint8_t* mask = to.mask;
  if (mask == nullptr) {
    own.resize(static_cast<std::size_t>(s.all_rows() * s.columns));
    mask = own.data();
  }
  executor.parallel_for(s.batch * s.heads_q, [&](std::int64_t task, int /*worker*/) {
    const std::int64_t b = task / s.heads_q, h = task % s.heads_q;
    const std::vector<float> queries =
        pool.blocks(s.q, b, h, s.seq_q, by.block_q, s.rows, true, s.scale);
    const std::vector<float>& of_k = keys[b * s.heads_k + h / group];
    Chooser chooser(s, by);
    for (std::int64_t row = 0; row < s.rows; ++row) {
      chooser.choose(queries.data() + row * features, of_k.data(), features, keys_of(s, by, b), row,
                     mask + (task * s.rows + row) * s.columns);
    }
  });
  if (to.mask == nullptr) write_list(s, mask, to);
}

}  // namespace tilewise::selection
