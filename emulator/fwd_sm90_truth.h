/// A case of fwd_sm90 on the emulator, its tensors, and a row of it by the formulas in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "block_lists.h"
#include "bool_masks.h"
//
#include "biases.h"
#include "fwd_sm90_configs.h"
#include "problem/philox.h"
#include "tree_words.h"

namespace {

using Bits = unsigned short;

constexpr Bits kNan = 0x7fff;

struct Case {
  const char* name;
  int dim = 64, dim_v = 64, heads_q = 2, heads_k = 2;
  std::vector<int> queries = {}, keys = {};  ///< of each batch entry or sequence
  bool packed = false, lengths = false;
  Causal causal = Causal::none;
  std::int64_t left = Problem::kUnbounded, right = Problem::kUnbounded;
  double scale = 0.0;  ///< 0: the default
  double softcap = 0.0;
  bool alibi = false;
  float amplitude = 1.0F;
  bool rising = false;  ///< logits of every other eight rows grow to the left, far above the rest
  /// packed, with equal queries and keys: sequences are documents of so many entries, of as many
  /// rows each, as `documents` finds them. 0: they are not.
  int documents = 0;
  int tail = 0;                  ///< packed: rows behind the last sequence
  int block_m = 0, block_n = 0;  ///< of the tile to take, 0: any
  int splits = 1;
  int page_size = 0;  ///< K and V in pages; keys have lengths then, queries may be packed
  Blocks blocks = {};
  int sample = -1;     ///< the caller's own functions, of expression_samples.h
  int shows_cut = -1;  ///< cut tiles of a row whose pairs are kept as bits, if it is not -1
  Shows shows = {};
  bool mapped = false;  ///< the mask makes a list
  bool sinks = false;
  const Added* bias = nullptr;
  double dropout = 0.0;
  bool tree = false;  ///< the queries are its nodes
};

Bits narrow(float x) { return static_cast<Bits>(tile::pack<tile::Element::bf16>(x, 0.0F)); }
float wide(Bits x) { return tile::widen<tile::Element::bf16>(x); }

/// A (B, S, H, D) tensor of random values, with its logical axes (B, H, S, D): columns of a wider
/// one whose others are NaN.
struct Rows {
  std::vector<Bits> data;
  int heads, rows, dim, pitch;
  Rows(int batch, int heads_, int rows_, int dim_, float amplitude, std::mt19937& random)
      : heads(heads_), rows(rows_), dim(dim_), pitch((dim + 7) / 8 * 8 + 8) {
    std::normal_distribution<float> normal;
    data.assign(static_cast<std::size_t>(batch) * heads * rows * pitch, kNan);
    for (std::size_t i = 0; i < data.size() && amplitude > 0.0F; ++i) {
      if (static_cast<int>(i % pitch) < dim) data[i] = narrow(amplitude * normal(random));
    }
  }
  Bits* at(int b, int h, int i) {
    return &data[((static_cast<std::size_t>(b) * rows + i) * heads + h) * pitch];
  }
  Tensor tensor(int batch) {
    Tensor t = Tensor::bshd(data.data(), DType::bfloat16, batch, rows, heads, pitch,
                            {DeviceType::cuda, 0});
    t.sizes[3] = dim;
    return t;
  }
  bool is_intact_around() const {
    for (std::size_t i = 0; i < data.size(); ++i) {
      if (static_cast<int>(i % pitch) >= dim && data[i] != kNan) return false;
    }
    return true;
  }
};

/// Pages of a row of the table: one more than the longest entry needs.
std::int64_t pages_of(const Case& c) {
  return *std::max_element(c.keys.begin(), c.keys.end()) / c.page_size + 2;
}

Problem make_problem(const Case& c) {
  Problem p;
  p.device = {DeviceType::cuda, 0};
  p.dtype = DType::bfloat16;
  p.batch = static_cast<int>(c.keys.size());
  p.heads_q = c.heads_q;
  p.heads_k = c.heads_k;
  p.seq_q = *std::max_element(c.queries.begin(), c.queries.end());
  p.seq_k = *std::max_element(c.keys.begin(), c.keys.end());
  p.head_dim = c.dim;
  p.head_dim_v = c.dim_v;
  p.packed = c.packed;
  if (c.page_size > 0) {
    p.paged = true;
    p.page_size = c.page_size;
    p.seq_k = pages_of(c) * c.page_size;
  }
  p.scale64 = c.scale != 0.0 ? c.scale : 1.0 / std::sqrt(c.dim);
  p.scale = static_cast<float>(p.scale64);
  p.softcap = c.softcap;
  p.causal = c.causal;
  p.dropout = {.p = c.dropout, .seed = 0x123456789abcULL, .offset = 5};
  p.left = c.left;
  p.right = c.causal == Causal::bottom_right ? std::min<std::int64_t>(c.right, 0) : c.right;
  return p;
}

double slope(const Case& c, int h) { return std::exp2(-8.0 * (h + 1) / c.heads_q); }

/// Ordinary ones, none, and one that takes nearly all.
float sink(int h) {
  constexpr float kSinks[] = {1.0F, -2.5F, -std::numeric_limits<float>::infinity(), 12.0F};
  return kSinks[h % 4];
}

/// By the first column of Q and K.
void make_rising(const Case& c, Rows& q, Rows& k) {
  for (int h = 0; h < c.heads_q; ++h) {
    for (int i = 0; i < q.rows; ++i) *q.at(0, h, i) = narrow(i / 8 % 2 == 0 ? 0.0F : 5.0F);
  }
  for (int h = 0; h < c.heads_k; ++h) {
    for (int j = 0; j < k.rows; ++j) *k.at(0, h, j) = narrow(static_cast<float>(k.rows - j));
  }
}

/// One row: what is wrong with it goes to `o_error` and `lse_error` (relative to its bound).
struct Row {
  int batch, head, q_row, k_row, i, queries, keys;  ///< q_row, k_row: of the tensors; i: position
  int position;                                     ///< of the entry or the sequence
};
void compare(const Case& c, const BlockLists& lists, const BoolMask& mask, const Bias& bias,
             const samples::Interpreted* of, const Row& at, Rows& q, Rows& k, Rows& v, Rows& o,
             float lse, double& o_error, double& lse_error) {
  const Problem p = make_problem(c);
  const int head_k = at.head / (c.heads_q / c.heads_k);
  const int batch_k = c.page_size > 0 ? at.position : at.batch;
  const KeyRange range = p.visible_keys({0, at.queries, 0, at.keys}, at.i);
  const TreeWords tree(0, c.tree ? static_cast<int>(p.seq_q) : 0);
  std::vector<double> s, query;
  for (int d = 0; d < c.dim; ++d) query.push_back(wide(q.at(at.batch, at.head, at.q_row)[d]));
  std::vector<int> seen;
  double largest = 1.0;
  for (auto j = range.begin; j < range.end; ++j) {
    if (!lists.has(c.blocks, at.position, at.head, at.i, j)) continue;
    if (!mask.has(at.batch, at.head, c.packed ? at.q_row : at.i, j)) continue;
    if (!tree.shows(at.position, at.i, at.queries, static_cast<int>(j), at.keys)) continue;
    seen.push_back(static_cast<int>(j));
    const Bits* key = k.at(batch_k, head_k, at.k_row + static_cast<int>(j));
    double x = 0.0;
    for (int d = 0; d < c.dim; ++d) x += query[d] * wide(key[d]);
    x *= p.scale64;
    if (c.softcap != 0.0) x = c.softcap * std::tanh(x / c.softcap);
    if (c.alibi) x -= slope(c, at.head) * std::fabs(at.i + at.keys - at.queries - double(j));
    const double added = bias.at(at.batch, at.head, c.packed ? at.q_row : at.i, j);
    if (added == -std::numeric_limits<double>::infinity()) {
      seen.pop_back();
      continue;
    }
    x += added;
    if (of != nullptr) {
      const expression::Point point = {at.position, at.head, at.i, j, at.queries, at.keys, x};
      if (!of->is_visible(point)) {
        seen.pop_back();
        continue;
      }
      x = of->value(point);
    }
    s.push_back(x);
    largest = std::max(largest, std::fabs(x));
  }
  double m = s.empty() ? 0.0 : *std::max_element(s.begin(), s.end()), l = 0.0;
  const double extra = c.sinks ? sink(at.head) : -std::numeric_limits<double>::infinity();
  if (std::isfinite(extra)) {
    m = s.empty() ? extra : std::max(m, extra);
    l = std::exp(extra - m);
    largest = std::max(largest, std::fabs(extra));
  }
  for (double& x : s) l += x = std::exp(x - m);
  const DropoutMask kept(p.dropout);
  for (std::size_t j = 0; j < s.size(); ++j) {
    const std::int64_t pair = static_cast<std::int64_t>(at.position) * c.heads_q + at.head;
    s[j] *= kept.keeps(pair, at.i, seen[j]) ? kept.scale() : 0.0;
  }
  std::vector<double> sums(static_cast<std::size_t>(c.dim_v));
  for (std::size_t j = 0; j < s.size(); ++j) {
    const Bits* value = v.at(batch_k, head_k, at.k_row + seen[j]);
    for (int d = 0; d < c.dim_v; ++d) sums[d] += s[j] / l * wide(value[d]);
  }
  const Bits* got = o.at(at.batch, at.head, at.q_row);
  for (int d = 0; d < c.dim_v; ++d) {
    const double off = std::fabs(sums[d] - wide(got[d]));
    o_error = std::isnan(off) ? 1e9 : std::max(o_error, off);
  }
  if (s.empty() && !std::isfinite(extra)) {
    if (lse != -std::numeric_limits<float>::infinity()) lse_error = 1e9;
  } else {
    const double off = std::fabs(m + std::log(l) - lse) / (1e-5 * largest);
    lse_error = std::isnan(off) ? 1e9 : std::max(lse_error, off);
  }
}

}  // namespace
