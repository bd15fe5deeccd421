/// Routing by clusters: labels, orders, shares, pairs of blocks.
#include <numeric>
#include <vector>

#include "problem/blocks.h"
#include "selection/elements.h"
#include "selection/largest.h"

namespace tilewise::selection {
namespace {

/// One head's tokens in the order of their clusters, and what each block has of each.
struct Sorted {
  std::vector<std::int32_t> order;
  std::vector<double> shares;  ///< (blocks, clusters)

  Sorted(const Routing& r, const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t of_keys,
         std::int64_t tokens, std::int64_t block) {
    const std::int64_t n = t.sizes[2], clusters = r.clusters();
    std::vector<std::int64_t> labels(static_cast<std::size_t>(n), clusters);  // padding
    for (std::int64_t i = 0; i < tokens; ++i) labels[i] = nearest(r, t, b, h, i, of_keys);
    order.resize(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) {
      return labels[static_cast<std::size_t>(x)] < labels[static_cast<std::size_t>(y)];
    });
    shares.resize(static_cast<std::size_t>(ceil_div(n, block) * clusters));
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t label = labels[static_cast<std::size_t>(order[i])], at = i / block;
      const std::int64_t size = std::min(block, n - at * block);
      if (label < clusters) shares[at * clusters + label] += 1.0 / static_cast<double>(size);
    }
  }

 private:
  /// The centroid of the largest cosine. The token's length changes nothing.
  static std::int64_t nearest(const Routing& r, const Tensor& t, std::int64_t b, std::int64_t h,
                              std::int64_t i, std::int64_t of_keys) {
    const Tensor& c = r.centroids;
    std::int64_t best = 0;
    double highest = 0.0;
    for (std::int64_t n = 0; n < r.clusters(); ++n) {
      double along = 0.0, squares = 0.0;
      for (std::int64_t e = 0; e < t.sizes[3]; ++e) {
        const auto axis = static_cast<double>(
            element(c, of_keys * c.strides[0] + n * c.strides[1] + e * c.strides[2]));
        along += axis * static_cast<double>(element(t, b * t.strides[0] + h * t.strides[1] +
                                                           i * t.strides[2] + e * t.strides[3]));
        squares += axis * axis;
      }
      const double cosine = along / std::max(std::sqrt(squares), 1e-12);
      if (n == 0 || cosine > highest) best = n, highest = cosine;
    }
    return best;
  }
};

}  // namespace

void route_on_cpu(const Routing& r, Executor& executor) {
  const Shape& s = r.shape;
  const std::int64_t group = s.heads_q / s.heads_k, clusters = r.clusters();
  const double least = r.by.threshold / static_cast<double>(clusters);
  executor.parallel_for(s.batch * s.heads_k, [&](std::int64_t task, int /*worker*/) {
    const std::int64_t b = task / s.heads_k, of_keys = task % s.heads_k;
    const Sorted k(r, s.k, b, of_keys, of_keys, keys_of(s, r.by.key_lengths, b), r.by.block_k);
    std::copy(k.order.begin(), k.order.end(), r.key_order + task * s.seq_k);
    std::vector<std::int64_t> scratch;
    for (std::int64_t h = of_keys * group; h < (of_keys + 1) * group; ++h) {
      const Sorted q(r, s.q, b, h, of_keys, s.seq_q, r.by.block_q);
      const std::int64_t pair = b * s.heads_q + h;
      std::copy(q.order.begin(), q.order.end(), r.query_order + pair * s.seq_q);
      for (std::int64_t row = 0; row < s.rows; ++row) {
        const double* mine = q.shares.data() + row * clusters;
        std::vector<std::uint8_t> taken(static_cast<std::size_t>(clusters));
        take_largest(mine, clusters, r.by.top, scratch, taken.data());
        std::uint8_t* seen = r.mask + (pair * s.rows + row) * s.columns;
        std::int64_t best = 0;
        double most = -1.0;
        for (std::int64_t j = 0; j < s.columns; ++j) {
          const double* theirs = k.shares.data() + j * clusters;
          bool shares = false;
          double common = 0.0;
          for (std::int64_t c = 0; c < clusters; ++c) {
            shares = shares || (taken[c] != 0 && mine[c] > least && theirs[c] > least);
            common += mine[c] * theirs[c];
          }
          seen[j] = shares ? 1 : 0;
          if (common > most) best = j, most = common;
        }
        if (s.columns > 0) seen[best] = 1;
      }
    }
  });
}

}  // namespace tilewise::selection
