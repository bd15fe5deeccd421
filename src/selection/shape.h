/// A selection's arguments, checked.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tilewise/selection.h"

namespace tilewise::selection {

/// Sizes, and what follows from them.
struct Shape {
  Tensor q, k;  ///< rank 4
  std::int64_t batch = 0, heads_q = 0, heads_k = 0, seq_q = 0, seq_k = 0, head_dim = 0;
  std::int64_t rows = 0, columns = 0;  ///< blocks of queries, of keys
  double scale = 0.0;

  std::int64_t all_rows() const { return batch * heads_q * rows; }
};

Shape make_shape(const Tensor& q, const Tensor& k, const BlockSelection& selection);

/// Blocks of keys [begin, end) of a row that may be taken, and those of them on the diagonal.
struct Candidates {
  std::int64_t end = 0, diagonal = 0, diagonal_end = 0;
};
/// `row` of an entry with `keys` keys.
inline Candidates candidates(const Shape& s, const BlockSelection& by, std::int64_t keys,
                             std::int64_t row) {
  const std::int64_t shift = keys - s.seq_q, blocks = (keys + by.block_k - 1) / by.block_k;
  const std::int64_t first = row * by.block_q + shift;
  const std::int64_t last = std::min((row + 1) * by.block_q, s.seq_q) - 1 + shift;
  Candidates c;
  c.end = by.causal ? std::clamp<std::int64_t>(last < 0 ? 0 : last / by.block_k + 1, 0, blocks)
                    : blocks;
  c.diagonal = first < 0 ? 0 : std::min(first / by.block_k, c.end);
  c.diagonal_end = last < 0 ? 0 : std::min(last / by.block_k + 1, c.end);
  return c;
}

/// The largest number not above x / y, and not below it; y > 0.
constexpr std::int64_t floor_div(std::int64_t x, std::int64_t y) {
  return x >= 0 ? x / y : -((-x + y - 1) / y);
}

/// vertical_slash: the queries that are asked, and how distances in blocks are numbered.
struct Lines {
  std::int64_t queries = 0, columns = 0;
  Lines(const Shape& s, const BlockSelection& by)
      : queries(std::min(by.block_q, s.seq_q)), columns(s.columns) {}
  std::int64_t distances() const { return 2 * columns + 1; }
  std::int64_t all() const { return columns + distances(); }  ///< blocks of keys, then distances
  std::int64_t number(std::int64_t distance) const { return distance + columns; }
};

/// What a selection is written to: a list or a mask.
struct Target {
  std::int32_t* row_offsets = nullptr;
  std::int32_t* block_index = nullptr;
  std::uint8_t* mask = nullptr;
};

/// Where the tensors of score_blocks_backward() lie; dq and dk are of rank 4.
struct ScoreGradients {
  const float* d_scores = nullptr;
  Tensor dq, dk;
};
void score_on_cpu(const Shape& s, const BlockSelection& by, float* scores, Executor& executor);
void score_backward_on_cpu(const Shape& s, const BlockSelection& by, const ScoreGradients& to,
                           Executor& executor);

/// What cluster_route() is given and writes.
struct Routing {
  Shape shape;
  ClusterRouting by;
  Tensor centroids;  ///< (Hk, C, D), any strides
  std::int32_t *query_order = nullptr, *key_order = nullptr;
  std::uint8_t* mask = nullptr;
  std::int64_t clusters() const { return centroids.sizes[1]; }
};
void route_on_cpu(const Routing& routing, Executor& executor);

void select_on_cpu(const Shape& s, const BlockSelection& by, const Target& to, Executor& executor);

}  // namespace tilewise::selection
