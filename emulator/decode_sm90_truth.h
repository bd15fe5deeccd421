/// A case of decode_sm90 on the emulator, its tensors, and a row of it by the formulas in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cuda/kernels/decode_sm90/choice.h"
#include "cuda/tile/math.cuh"
#include "tensor_maps.h"
#include "tree_words.h"

namespace {

using namespace tilewise;
using decode_sm90::Config;
using Bits = unsigned short;

constexpr Bits kNan = 0x7fff;
constexpr int kNoPage = 1 << 28;  ///< reading its rows ends the program

struct Case {
  const char* name;
  int dim = 64, dim_v = 64, heads_q = 8, heads_k = 2, queries = 1;
  std::vector<int> keys = {};
  int page = 0;  ///< rows of a page; 0: K and V side by side
  bool lengths = true;
  Causal causal = Causal::none;
  std::int64_t left = Problem::kUnbounded, right = Problem::kUnbounded;
  double softcap = 0.0;
  bool alibi = false, sinks = false;
  bool shared = false;    ///< all entries begin with one page
  bool expanded = false;  ///< all entries have the first one's keys, by a stride of 0
  double scale = 0.0;
  int part = 64;        ///< keys of a part
  bool shares = false;  ///< combine: groups share the parts of a row
  bool tree = false;    ///< the queries are its nodes
  int nodes() const { return tree ? queries : 0; }
};

Bits narrow(float x) { return static_cast<Bits>(tile::pack<tile::Element::bf16>(x, 0.0F)); }
float wide(Bits x) { return tile::widen<tile::Element::bf16>(x); }

/// A (batch, rows, heads, dim) tensor with axes (B, H, S, D) in rows of `dim` rounded up and 8
/// more.
struct Rows {
  std::vector<Bits> data;
  int heads, rows, dim, pitch;
  Rows(int batch, int heads_, int rows_, int dim_)
      : data(static_cast<std::size_t>(batch) * heads_ * rows_ * (dim_ + 8), kNan),
        heads(heads_),
        rows(rows_),
        dim(dim_),
        pitch(dim_ + 8) {}
  Bits* at(int b, int h, int i) {
    return &data[((static_cast<std::size_t>(b) * rows + i) * heads + h) * pitch];
  }
  void fill(int b, int i, std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (int h = 0; h < heads; ++h) {
      for (int d = 0; d < dim; ++d) at(b, h, i)[d] = narrow(normal(random));
    }
  }
  Tensor tensor(int batch) {
    Tensor t = Tensor::bshd(data.data(), DType::bfloat16, batch, rows, heads, pitch,
                            {DeviceType::cuda, 0});
    t.sizes[3] = dim;
    return t;
  }
};

double slope(const Case& c, int h) { return std::exp2(-8.0 * (h + 1) / c.heads_q); }
float sink(int h) { return h % 2 == 0 ? 0.5F + static_cast<float>(h) : -3.0F; }

/// Where key j of an entry lies.
struct Place {
  int batch, row;
};
struct Keys {
  std::vector<int> table;  ///< (B, columns)
  int columns = 0, page = 0;
  bool expanded = false;
  Place at(int b, int j) const {
    if (page == 0) return {expanded ? 0 : b, j};
    return {table[b * columns + j / page], j % page};
  }
};

/// Tables of shuffled pages. What lies past a length, and wholly left of a window, is no page.
Keys make_keys(const Case& c, const Problem& p, int& pages, std::mt19937& random) {
  Keys keys;
  keys.page = c.page;
  keys.expanded = c.expanded;
  const int batch = static_cast<int>(c.keys.size());
  if (c.page == 0) {
    pages = batch;
    return keys;
  }
  keys.columns = static_cast<int>((p.seq_k + c.page - 1) / c.page) + 1;
  keys.table.assign(static_cast<std::size_t>(batch) * keys.columns, kNoPage);
  std::vector<int> order(keys.table.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  pages = static_cast<int>(order.size());
  for (int b = 0; b < batch; ++b) {
    const KeyRange first = p.visible_keys({0, c.queries, 0, c.keys[b]}, 0);
    for (int n = 0; n * c.page < c.keys[b]; ++n) {
      const bool needed = (n + 1) * c.page > first.begin;
      if (needed) keys.table[b * keys.columns + n] = order[b * keys.columns + n];
    }
    if (c.shared && b > 0) keys.table[b * keys.columns] = keys.table[0];
  }
  return keys;
}

/// A row by the formulas, as far as it is off.
void compare(const Case& c, const Problem& p, const Keys& keys, int b, int h, int i, Rows& q,
             Rows& k, Rows& v, const Bits* got, float lse, double& o_error, double& lse_error) {
  const int head_k = h / (c.heads_q / c.heads_k);
  const KeyRange range = p.visible_keys({0, c.queries, 0, c.keys[b]}, i);
  const TreeWords tree(0, c.nodes());
  std::vector<double> s;
  std::vector<int> seen;
  double largest = 1.0;
  for (auto j = range.begin; j < range.end; ++j) {
    if (!tree.shows(b, i, c.queries, static_cast<int>(j), c.keys[b])) continue;
    seen.push_back(static_cast<int>(j));
    const Place at = keys.at(b, static_cast<int>(j));
    double x = 0.0;
    for (int d = 0; d < c.dim; ++d) {
      x += static_cast<double>(wide(q.at(b, h, i)[d])) * wide(k.at(at.batch, head_k, at.row)[d]);
    }
    x *= p.scale64;
    if (c.softcap != 0.0) x = c.softcap * std::tanh(x / c.softcap);
    if (c.alibi) x -= slope(c, h) * std::fabs(i + c.keys[b] - c.queries - double(j));
    s.push_back(x);
    largest = std::max(largest, std::fabs(x));
  }
  double m = c.sinks ? sink(h) : s.empty() ? 0.0 : s[0];
  for (const double x : s) m = std::max(m, x);
  double l = c.sinks ? std::exp(sink(h) - m) : 0.0;
  for (double& x : s) l += x = std::exp(x - m);
  for (int d = 0; d < c.dim_v; ++d) {
    double x = 0.0;
    for (std::size_t n = 0; n < s.size(); ++n) {
      const Place at = keys.at(b, seen[n]);
      x += s[n] / l * wide(v.at(at.batch, head_k, at.row)[d]);
    }
    const double off = std::fabs(x - wide(got[d]));
    o_error = std::isnan(off) ? 1e9 : std::max(o_error, off);
  }
  if (l == 0.0) {
    if (lse != -std::numeric_limits<float>::infinity()) lse_error = 1e9;
  } else {
    const double off = std::fabs(m + std::log(l) - lse) / (1e-5 * largest);
    lse_error = std::isnan(off) ? 1e9 : std::max(lse_error, off);
  }
}

Problem make_problem(const Case& c) {
  Problem p;
  p.device = {DeviceType::cuda, 0};
  p.dtype = DType::bfloat16;
  p.batch = static_cast<int>(c.keys.size());
  p.heads_q = c.heads_q;
  p.heads_k = c.heads_k;
  p.seq_q = p.total_q = c.queries;
  p.seq_k = p.total_k = std::max(1, *std::max_element(c.keys.begin(), c.keys.end()));
  p.head_dim = c.dim;
  p.head_dim_v = c.dim_v;
  p.paged = c.page > 0;
  p.page_size = c.page;
  p.scale64 = c.scale != 0.0 ? c.scale : 1.0 / std::sqrt(c.dim);
  p.scale = static_cast<float>(p.scale64);
  p.softcap = c.softcap;
  p.causal = c.causal;
  p.left = c.left;
  p.right = c.causal == Causal::bottom_right ? std::min<std::int64_t>(c.right, 0) : c.right;
  return p;
}

}  // namespace
