/// Which blocks the working layer's heads attend, and how the choice is learned.
#include <cmath>
#include <numeric>
#include <vector>

#include "layers/choices.h"
#include "layers/cpu_ops.h"
#include "problem/philox.h"
#include "selection/largest.h"

namespace tilewise::asam {
namespace {

/// x / |x| as torch's normalize computes it; returns the divisor.
template <class T>
T normalize(const T* x, T* y, std::int64_t dim) {
  T squares = 0;
  for (std::int64_t e = 0; e < dim; ++e) squares += x[e] * x[e];
  const T length = std::max(std::sqrt(squares), T(1e-12));
  for (std::int64_t e = 0; e < dim; ++e) y[e] = x[e] / length;
  return length;
}
/// dx += the gradient through it.
template <class T>
void normalize_backward(const T* y, T length, const T* dy, T* dx, std::int64_t dim) {
  T along = 0;
  for (std::int64_t e = 0; e < dim; ++e) along += y[e] * dy[e];
  for (std::int64_t e = 0; e < dim; ++e) dx[e] += (dy[e] - y[e] * along) / length;
}

template <class T>
T dot(const T* x, const T* y, std::int64_t dim) {
  return std::inner_product(x, x + dim, y, T{0});
}

/// Soft clusters of vectors: softmax over clusters of the cosine to each centroid / |temperature|.
template <class T>
struct Assignment {
  std::vector<T> lengths, unit, cosine, share;  ///< (n), (n, dim), (n, clusters), (n, clusters)

  Assignment(const T* x, const T* axes, T temperature, std::int64_t n, std::int64_t dim,
             std::int64_t clusters)
      : lengths(static_cast<std::size_t>(n)),
        unit(static_cast<std::size_t>(n * dim)),
        cosine(static_cast<std::size_t>(n * clusters)),
        share(cosine.size()) {
    for (std::int64_t i = 0; i < n; ++i) {
      T* row = share.data() + i * clusters;
      lengths[static_cast<std::size_t>(i)] = normalize(x + i * dim, unit.data() + i * dim, dim);
      for (std::int64_t c = 0; c < clusters; ++c) {
        cosine[static_cast<std::size_t>(i * clusters + c)] =
            dot(unit.data() + i * dim, axes + c * dim, dim);
        row[c] = cosine[static_cast<std::size_t>(i * clusters + c)] / std::abs(temperature);
      }
      const T most = *std::max_element(row, row + clusters);
      T sum = 0;
      for (std::int64_t c = 0; c < clusters; ++c) sum += row[c] = std::exp(row[c] - most);
      for (std::int64_t c = 0; c < clusters; ++c) row[c] /= sum;
    }
  }
};

/// One head's choice.
template <class T>
class HeadChoice {
 public:
  HeadChoice(const Choice<T>& c, std::int64_t bh)
      : c_(c),
        s_(c.shape),
        bh_(bh),
        tokens_(counted(c.lengths, bh / c.shape.heads.heads, c.shape.heads.tokens)),
        blocks_(ceil_div(tokens_, c.shape.block)) {
    const std::int64_t dim = s_.heads.dim;
    if (!needs_affinity()) return;
    q_ = pooled(0);
    k_ = pooled(1);
    axes_.resize(static_cast<std::size_t>(s_.clusters * dim));
    axis_lengths_.resize(static_cast<std::size_t>(s_.clusters));
    const T* centroids = c.centroids + head() * s_.clusters * dim;
    for (std::int64_t k = 0; k < s_.clusters; ++k) {
      axis_lengths_[static_cast<std::size_t>(k)] =
          normalize(centroids + k * dim, axes_.data() + k * dim, dim);
    }
  }

  std::int64_t head() const { return bh_ % s_.heads.heads; }
  std::int64_t batch() const { return bh_ / s_.heads.heads; }
  /// Of the sequence, padding left out.
  std::int64_t blocks() const { return blocks_; }

  /// The pattern's number: fixed, the largest logit, or in training the largest after noise.
  std::int64_t pattern() const {
    if (c_.config->pattern != Pattern::automatic) {
      return choice_number(c_.config->pattern);
    }
    const T* scores = (c_.training ? c_.soft : c_.logits) + bh_ * kChoices;
    return std::max_element(scores, scores + kChoices) - scores;
  }

  /// Whether each (query block, key block) is listed.
  std::vector<std::uint8_t> visible(std::int64_t pattern) const {
    const std::int64_t n = blocks_;
    std::vector<std::uint8_t> seen(static_cast<std::size_t>(n * n));
    const std::vector<T> scores =
        kChoicePatterns[static_cast<std::size_t>(pattern)] == Pattern::clustered ? affinity()
        : kChoicePatterns[static_cast<std::size_t>(pattern)] == Pattern::selected
            ? selection_scores()
            : std::vector<T>{};
    for (std::int64_t i = 0; i < n; ++i) {
      std::uint8_t* row = seen.data() + i * n;
      fill_row(kChoicePatterns[static_cast<std::size_t>(pattern)],
               scores.data() + i * n * (scores.empty() ? 0 : 1), i, row);
      row[i] = row[0] = 1;  // no row is left without keys
      if (c_.config->causal) std::fill(row + i + 1, row + n, std::uint8_t{0});
    }
    return seen;
  }

  /// The gradient of the mean affinity of the blocks that clustered lists.
  void affinity_backward(T d_shared) const {
    const std::int64_t n = blocks_, clusters = s_.clusters;
    const Assignment<T> q = assigned(q_), k = assigned(k_);
    const std::vector<T> scores = affinity();
    std::vector<std::uint8_t> near(scores.size());
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      std::uint8_t* row = near.data() + i * n;
      fill_row(Pattern::clustered, scores.data() + i * n, i, row);
      row[i] = row[0] = 1;
      count += std::count(row, row + n, std::uint8_t{1});
    }
    const T d = d_shared / static_cast<T>(std::max<std::int64_t>(count, 1));
    std::vector<T> dq(q.share.size()), dk(k.share.size());
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        if (near[static_cast<std::size_t>(i * n + j)] == 0) continue;
        for (std::int64_t e = 0; e < clusters; ++e) {
          dq[static_cast<std::size_t>(i * clusters + e)] +=
              d * k.share[static_cast<std::size_t>(j * clusters + e)];
          dk[static_cast<std::size_t>(j * clusters + e)] +=
              d * q.share[static_cast<std::size_t>(i * clusters + e)];
        }
      }
    }
    assignment_backward(q, dq, 0);
    assignment_backward(k, dk, 1);
  }

 private:
  bool needs_affinity() const {
    return c_.config->pattern == Pattern::clustered || c_.config->pattern == Pattern::automatic;
  }

  /// Means over blocks of q (part 0) or k (part 1): (blocks, dim).
  std::vector<T> pooled(std::int64_t part) const {
    const HeadShape& h = s_.heads;
    std::vector<T> means(static_cast<std::size_t>(blocks_ * h.dim)), room(dim_elems());
    for (std::int64_t i = 0; i < tokens_; ++i) {
      const T* row = read_row(c_.qkv, c_.config->compute, at(i, part), h.dim, room.data());
      T* mean = means.data() + i / s_.block * h.dim;
      for (std::int64_t e = 0; e < h.dim; ++e) mean[e] += row[e];
    }
    for (std::int64_t n = 0; n < blocks_; ++n) {
      for (std::int64_t e = 0; e < h.dim; ++e) {
        means[static_cast<std::size_t>(n * h.dim + e)] /= static_cast<T>(tokens_of(n));
      }
    }
    return means;
  }
  /// Where token i's vector begins in qkv.
  std::int64_t at(std::int64_t i, std::int64_t part) const {
    const HeadShape& h = s_.heads;
    return (((batch() * h.tokens + i) * 3 + part) * h.heads + head()) * h.dim;
  }
  std::size_t dim_elems() const { return static_cast<std::size_t>(s_.heads.dim); }
  std::int64_t tokens_of(std::int64_t block) const {
    return std::min(s_.block, tokens_ - block * s_.block);
  }

  Assignment<T> assigned(const std::vector<T>& x) const {
    return {x.data(), axes_.data(), *c_.temperature, blocks_, s_.heads.dim, s_.clusters};
  }
  /// How much each pair of blocks shares clusters.
  std::vector<T> affinity() const {
    const std::int64_t n = blocks_;
    const Assignment<T> q = assigned(q_), k = assigned(k_);
    std::vector<T> scores(static_cast<std::size_t>(n * n));
    for (std::int64_t at = 0; at < n * n; ++at) {
      scores[static_cast<std::size_t>(at)] =
          dot(q.share.data() + at / n * s_.clusters, k.share.data() + at % n * s_.clusters,
              s_.clusters);
    }
    return scores;
  }
  /// Maxima and minima over blocks of q (part 0) or k (part 1): (blocks, 2, dim).
  std::vector<T> extremes(std::int64_t part) const {
    const std::int64_t dim = s_.heads.dim;
    std::vector<T> found(static_cast<std::size_t>(2 * blocks_ * dim)), room(dim_elems());
    for (std::int64_t i = 0; i < tokens_; ++i) {
      const T* row = read_row(c_.qkv, c_.config->compute, at(i, part), dim, room.data());
      T* highest = found.data() + i / s_.block * 2 * dim;
      T* lowest = highest + dim;
      const bool first = i % s_.block == 0;
      for (std::int64_t e = 0; e < dim; ++e) {
        highest[e] = first ? row[e] : std::max(highest[e], row[e]);
        lowest[e] = first ? row[e] : std::min(lowest[e], row[e]);
      }
    }
    return found;
  }
  /// max(q) . max(k) + min(q) . min(k): softmax would not change the order.
  std::vector<T> selection_scores() const {
    const std::int64_t n = blocks_, width = 2 * s_.heads.dim;
    const std::vector<T> q = extremes(0), k = extremes(1);
    std::vector<T> scores(static_cast<std::size_t>(n * n));
    for (std::int64_t at = 0; at < n * n; ++at) {
      scores[static_cast<std::size_t>(at)] =
          dot(q.data() + at / n * width, k.data() + at % n * width, width);
    }
    return scores;
  }

  /// Row i of a pattern, before what every row keeps.
  void fill_row(Pattern pattern, const T* scores, std::int64_t i, std::uint8_t* row) const {
    const Config& config = *c_.config;
    const std::int64_t n = blocks_;
    if (pattern == Pattern::selected) {
      std::vector<std::int64_t> order;
      return selection::take_largest(scores, config.causal ? i + 1 : n, selected_blocks(config, n),
                                     order, row);
    }
    T mean = 0;
    if (pattern == Pattern::clustered) {
      mean = std::accumulate(scores, scores + n, T{0}) / static_cast<T>(n);
    }
    const std::int64_t reach = local_reach(config), every = strided_every(config);
    for (std::int64_t j = 0; j < n; ++j) {
      const std::int64_t apart = std::abs(i - j);
      const bool seen = pattern == Pattern::local       ? apart <= reach
                        : pattern == Pattern::strided   ? apart <= 1 || j % every == 0
                        : pattern == Pattern::clustered ? scores[j] > mean
                                                        : (apart & (apart - 1)) == 0;
      row[j] = seen ? 1 : 0;
    }
  }
  /// From the gradient of the shares to those of tokens, centroids and temperature.
  void assignment_backward(const Assignment<T>& a, const std::vector<T>& d_share,
                           std::int64_t part) const {
    const std::int64_t dim = s_.heads.dim, clusters = s_.clusters;
    const T temperature = *c_.temperature, size = std::abs(temperature);
    T* d_centroids = c_.d_centroids + head() * clusters * dim;
    std::vector<T> d_unit(static_cast<std::size_t>(dim)), d_mean(d_unit.size());
    std::vector<T> d_axis(d_unit.size()), room(d_unit.size());
    for (std::int64_t n = 0; n < blocks_; ++n) {
      const T* share = a.share.data() + n * clusters;
      const T* ds = d_share.data() + n * clusters;
      const T* unit = a.unit.data() + n * dim;
      const T along = dot(share, ds, clusters);
      std::fill(d_unit.begin(), d_unit.end(), T{0});
      for (std::int64_t k = 0; k < clusters; ++k) {
        const T d_scaled = share[k] * (ds[k] - along);
        const T d_cosine = d_scaled / size;
        *c_.d_temperature -=
            d_scaled * a.cosine[static_cast<std::size_t>(n * clusters + k)] / (size * temperature);
        const T* axis = axes_.data() + k * dim;
        for (std::int64_t e = 0; e < dim; ++e) {
          d_unit[static_cast<std::size_t>(e)] += d_cosine * axis[e];
          d_axis[static_cast<std::size_t>(e)] = d_cosine * unit[e];
        }
        normalize_backward(axis, axis_lengths_[static_cast<std::size_t>(k)], d_axis.data(),
                           d_centroids + k * dim, dim);
      }
      std::fill(d_mean.begin(), d_mean.end(), T{0});
      normalize_backward(unit, a.lengths[static_cast<std::size_t>(n)], d_unit.data(), d_mean.data(),
                         dim);
      for (std::int64_t i = n * s_.block; i < n * s_.block + tokens_of(n); ++i) {
        const DType half = c_.config->compute;
        const T* before = read_row(c_.d_qkv, half, at(i, part), dim, room.data());
        T* row = row_of(c_.d_qkv, at(i, part), room.data());
        for (std::int64_t e = 0; e < dim; ++e) {
          row[e] = before[e] + d_mean[static_cast<std::size_t>(e)] / static_cast<T>(tokens_of(n));
        }
        write_row(c_.d_qkv, half, at(i, part), dim, row);
      }
    }
  }

  const Choice<T>& c_;
  const ChoiceShape& s_;
  std::int64_t bh_, tokens_, blocks_;
  std::vector<T> q_, k_, axes_, axis_lengths_;
};

/// softmax(logits + Gumbel noise): where it is largest is the draw.
template <class T>
void draw_softly(const Choice<T>& c, std::int64_t bh) {
  const DropoutMask random({.p = 0.0, .seed = c.draw.seed, .offset = c.draw.offset()});
  T* soft = c.soft + bh * kChoices;
  for (std::int64_t k = 0; k < kChoices; ++k) {
    const std::uint32_t word =
        random.words(c.draw.site, bh, k / 4)[static_cast<std::size_t>(k % 4)];
    const double uniform = (static_cast<double>(word) + 0.5) * 0x1p-32;
    soft[k] = c.logits[bh * kChoices + k] - static_cast<T>(std::log(-std::log(uniform)));
  }
  const T most = *std::max_element(soft, soft + kChoices);
  T sum = 0;
  for (std::int64_t k = 0; k < kChoices; ++k) sum += soft[k] = std::exp(soft[k] - most);
  for (std::int64_t k = 0; k < kChoices; ++k) soft[k] /= sum;
}

/// Which of a head's two attentions run, and the gate that mixes them.
template <class T>
struct Route {
  bool sparse = true, dense = true;
  T mixing;
  Route(const Config& config, bool training, T gate) : mixing(gate) {
    if (!config.adaptive_gate) {
      dense = false;
      mixing = 1;
    } else if (!training) {
      sparse = gate > static_cast<T>(1.0 - config.route_above);
      dense = gate < static_cast<T>(config.route_above);
      if (!sparse) mixing = 0;
      if (!dense) mixing = 1;
    }
  }
};

}  // namespace

template <class T>
void CpuOps<T>::choose(const Choice<T>& c) {
  const HeadShape& h = c.shape.heads;
  const std::int64_t n = c.shape.blocks();
  const bool draws = c.training && c.config->pattern == Pattern::automatic;
  each(h.batch * h.heads, 4 * h.tokens * h.dim + n * n * c.shape.clusters,
       [&](std::int64_t begin, std::int64_t end) {
         for (std::int64_t bh = begin; bh < end; ++bh) {
           if (draws) draw_softly(c, bh);
           const HeadChoice<T> head(c, bh);
           const std::int64_t pattern = head.pattern(), own = head.blocks();
           const Route<T> route(*c.config, c.training, c.gate[bh]);
           const std::vector<std::uint8_t> seen = head.visible(pattern);
           c.pattern[bh] =
               static_cast<std::int32_t>(kChoicePatterns[static_cast<std::size_t>(pattern)]);
           c.mixing[bh] = route.mixing;
           std::int64_t listed = 0;
           for (int dense = 0; dense < 2; ++dense) {
             const std::int64_t list = 2 * bh + dense;
             auto next = static_cast<std::int32_t>(list * n * n);
             std::int32_t* offsets = c.offsets + list * (n + 1);
             for (std::int64_t i = 0; i < n; ++i) {
               offsets[i] = next;
               if (i >= own) continue;
               const std::int64_t there = c.config->causal ? i + 1 : own;
               for (std::int64_t j = 0; j < there; ++j) {
                 const bool in_pattern = seen[static_cast<std::size_t>(i * own + j)] != 0;
                 if (dense == 0 && in_pattern) ++listed;
                 if (dense == 0 ? route.sparse && in_pattern : route.dense) {
                   c.index[next++] = static_cast<std::int32_t>(j);
                 }
               }
             }
             offsets[n] = next;
           }
           const std::int64_t every = c.config->causal ? own * (own + 1) / 2 : own * own;
           c.density[bh] =
               static_cast<float>(listed) / static_cast<float>(std::max<std::int64_t>(every, 1));
         }
       });
}

template <class T>
void CpuOps<T>::choose_backward(const Choice<T>& c) {
  const HeadShape& h = c.shape.heads;
  const bool automatic = c.config->pattern == Pattern::automatic;
  std::fill_n(c.d_logits, h.batch * h.heads * kChoices, T{0});
  for (std::int64_t bh = 0; bh < h.batch * h.heads; ++bh) {
    const auto chosen = static_cast<Pattern>(c.pattern[bh]);
    if (automatic) {  // straight through: the draw's gradient is that of the softmax
      const T* soft = c.soft + bh * kChoices;
      const std::int64_t at = choice_number(chosen);
      for (std::int64_t k = 0; k < kChoices; ++k) {
        c.d_logits[bh * kChoices + k] = soft[at] * (T(k == at ? 1 : 0) - soft[k]) * c.d_weight[bh];
      }
    }
    if (chosen == Pattern::clustered) HeadChoice<T>(c, bh).affinity_backward(c.d_weight[bh]);
  }
}

template <class T>
void CpuOps<T>::clustered_mask(Factor<T> qkv, const T* centroids, const T* temperature,
                               std::uint8_t* mask, HeadShape s, std::int64_t clusters) {
  each(s.batch * s.heads, s.tokens * s.tokens * clusters,
       [&](std::int64_t begin, std::int64_t end) {
         std::vector<T> rows[2], axes(static_cast<std::size_t>(clusters * s.dim));
         for (std::int64_t bh = begin; bh < end; ++bh) {
           const std::int64_t b = bh / s.heads, head = bh % s.heads;
           for (std::int64_t k = 0; k < clusters; ++k) {
             normalize(centroids + (head * clusters + k) * s.dim, axes.data() + k * s.dim, s.dim);
           }
           for (std::int64_t part = 0; part < 2; ++part) {
             rows[part].resize(static_cast<std::size_t>(s.tokens * s.dim));
             for (std::int64_t i = 0; i < s.tokens; ++i) {
               const std::int64_t at = (((b * s.tokens + i) * 3 + part) * s.heads + head) * s.dim;
               T* to = rows[part].data() + i * s.dim;
               const T* row = read_row(qkv, half_, at, s.dim, to);
               if (row != to) std::copy_n(row, s.dim, to);
             }
           }
           const Assignment<T> q(rows[0].data(), axes.data(), *temperature, s.tokens, s.dim,
                                 clusters);
           const Assignment<T> k(rows[1].data(), axes.data(), *temperature, s.tokens, s.dim,
                                 clusters);
           for (std::int64_t at = 0; at < s.tokens * s.tokens; ++at) {
             const T shared = dot(q.share.data() + at / s.tokens * clusters,
                                  k.share.data() + at % s.tokens * clusters, clusters);
             mask[bh * s.tokens * s.tokens + at] = shared > T(0.1) ? 1 : 0;
           }
         }
       });
}

template void CpuOps<float>::choose(const Choice<float>&);
template void CpuOps<double>::choose(const Choice<double>&);
template void CpuOps<float>::choose_backward(const Choice<float>&);
template void CpuOps<double>::choose_backward(const Choice<double>&);
template void CpuOps<float>::clustered_mask(Factor<float>, const float*, const float*,
                                            std::uint8_t*, HeadShape, std::int64_t);
template void CpuOps<double>::clustered_mask(Factor<double>, const double*, const double*,
                                             std::uint8_t*, HeadShape, std::int64_t);

}  // namespace tilewise::asam
