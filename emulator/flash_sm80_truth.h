/// Inputs of the emulated sm_80-class kernels, their results by the formulas in float64, and the
/// tensors as the kernels take them. The kernels are included before.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "cuda/tile/expression_args.h"
#include "cuda/tile/lists_args.h"
#include "problem/philox.h"

namespace {

using namespace tilewise;
using tile::Element;
using Bits = unsigned short;

constexpr Bits kPoison = 0x7fff;  // NaN in both types
int failures = 0;

/// The caller's own functions of scores.
struct Formula {
  struct Score {
    double value, slope;
  };
  std::function<Score(int h, int i, int j, double x)> score;
  std::function<bool(int h, int i, int j)> visible;
  tile::Captures captures;
  /// Configs with a list: in tiles of these rows and keys, for blocks of keys or of queries.
  std::function<tile::TileLists(int rows, int keys, bool of_keys)> lists;
};

struct Shape {
  int heads_q = 2, heads_k = 1, seq_q = 33, seq_k = 129, dim = 40;
  float scale = 0.158F;
  float amplitude = 1.0F;
  bool causal = false;
  bool rising = false;  ///< keys are their index
  bool pairs = false;   ///< a bias, a bool mask and sinks
  bool biased = true;   ///< with pairs: the bias too
  bool alike = false;   ///< pairs of all queries
  float shift = 0.0F;   ///< with pairs: not 0: the bias of all of them; a huge one has no sinks
  int faint = 0;        ///< with pairs: so many first keys are 2^-12 of the others; no sinks
  int first = 0;        ///< element of the storage of bias and mask
  double dropout = 0.0;
  int first_pair = 0;  ///< b * Hq, for dropout
  const Formula* formula = nullptr;

  DropoutMask drops() const {
    return DropoutMask({.p = dropout, .seed = 0x123456789abcdefULL, .offset = 5});
  }
};

/// Sinks, and bias and mask of a pair, alike in all heads.
const float* sinks_of(const Shape& s) {
  static float sinks[2];
  if (!s.pairs || s.faint > 0 || std::fabs(s.shift) > 1e6F) return nullptr;
  sinks[0] = s.shift + 0.5F, sinks[1] = s.shift - 1.0F;
  return sinks;
}
float bias_at(const Shape& s, int i, int j) {
  if (s.alike) i = 0;
  if (s.shift != 0.0F) return s.shift;
  if (s.faint > 0) return j < s.faint ? -8.3F : 0.0F;
  return s.biased ? 0.25F * static_cast<float>((3 * i + 5 * j) % 16 - 8) : 0.0F;
}
/// Single keys are hidden, and 32 queries from 64 keys.
bool is_visible(const Shape& s, int i, int j) {
  if (s.alike) i = 0;
  return (i + 2 * j) % 5 != 0 && (i / 32 + j / 64) % 3 != 1;
}

template <Element kElement>
Bits narrow(float x) {
  return static_cast<Bits>(tile::pack<kElement>(x, 0.0F));
}
template <Element kElement>
float widened(Bits x) {
  return tile::widen<kElement>(x);
}

/// Inputs, and the results of the formulas.
struct Truth {
  std::vector<float> q, k, v, d_o;
  std::vector<double> o, lse, dq, dk, dv;
  std::vector<double> dlogits, dsinks;  ///< (Hq, Sq, Sk), (Hq)
  std::vector<double> scores;           ///< (Hq, Sq, Sk): before the caller's functions
};

template <class Round>
std::vector<float> random_values(std::mt19937& random, int count, float amplitude, Round round) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = round(amplitude * normal(random));
  return values;
}

/// One query row of one head: (F1) to (F11), (B1) to (B9).
void add_row(const Shape& s, int h, int i, Truth& t) {
  const int row = h * s.seq_q + i, keys = h / (s.heads_q / s.heads_k) * s.seq_k;
  const int visible = s.causal ? std::clamp(i + 1 + s.seq_k - s.seq_q, 0, s.seq_k) : s.seq_k;
  const auto dot = [&](const std::vector<float>& a, int i_a, const auto& b, int i_b) {
    double sum = 0.0;
    for (int d = 0; d < s.dim; ++d) {
      sum += static_cast<double>(a[i_a * s.dim + d]) * static_cast<double>(b[i_b * s.dim + d]);
    }
    return sum;
  };
  std::vector<double> p(static_cast<std::size_t>(visible)), slopes(p.size(), 1.0);
  for (int j = 0; j < visible; ++j) {
    p[j] = dot(t.q, row, t.k, keys + j) * s.scale;
    if (s.pairs) p[j] += static_cast<double>(bias_at(s, i, j));
    t.scores[row * s.seq_k + j] = p[j];
    if (s.formula != nullptr) {
      const Formula::Score score = s.formula->score(h, i, j, p[j]);
      p[j] = s.formula->visible(h, i, j) ? score.value : -std::numeric_limits<double>::infinity();
      slopes[j] = score.slope;
    }
    if (s.pairs && !is_visible(s, i, j)) p[j] = -std::numeric_limits<double>::infinity();
  }
  double m = p.empty() ? 0.0 : *std::max_element(p.begin(), p.end());
  const bool sinks = sinks_of(s) != nullptr;
  if (sinks) m = std::max(m, static_cast<double>(sinks_of(s)[h]));
  if (std::isinf(m)) m = 0.0;  // nothing is visible
  double l = sinks ? std::exp(static_cast<double>(sinks_of(s)[h]) - m) : 0.0;
  for (double& x : p) l += x = std::exp(x - m);
  t.lse[row] = m + std::log(l);
  const DropoutMask drops = s.drops();
  std::vector<double> z(static_cast<std::size_t>(visible));
  for (int j = 0; j < visible; ++j) {
    p[j] = l == 0.0 ? 0.0 : p[j] / l;
    z[j] = drops.keeps(s.first_pair + h, i, j) ? drops.scale() : 0.0;
    for (int d = 0; d < s.dim; ++d) {
      t.o[row * s.dim + d] += z[j] * p[j] * t.v[(keys + j) * s.dim + d];
    }
  }
  const double delta = dot(t.d_o, row, t.o, row);
  if (sinks) t.dsinks[h] -= std::exp(static_cast<double>(sinks_of(s)[h]) - t.lse[row]) * delta;
  for (int j = 0; j < visible; ++j) {
    const double dx = p[j] * (z[j] * dot(t.d_o, row, t.v, keys + j) - delta),
                 ds = p[j] == 0.0 ? 0.0 : dx * slopes[j] * s.scale;
    t.dlogits[row * s.seq_k + j] = dx;
    for (int d = 0; d < s.dim; ++d) {
      t.dq[row * s.dim + d] += ds * t.k[(keys + j) * s.dim + d];
      t.dk[(keys + j) * s.dim + d] += ds * t.q[row * s.dim + d];
      t.dv[(keys + j) * s.dim + d] += z[j] * p[j] * t.d_o[row * s.dim + d];
    }
  }
}

template <class Round>
Truth make_truth(const Shape& s, Round round) {
  std::mt19937 random(7);
  Truth t;
  const int queries = s.heads_q * s.seq_q, keys = s.heads_k * s.seq_k;
  t.q = random_values(random, queries * s.dim, s.amplitude, round);
  t.k = random_values(random, keys * s.dim, s.amplitude, round);
  for (int n = 0; s.rising && n < keys * s.dim; ++n) {
    t.k[n] = round(static_cast<float>(n / s.dim % s.seq_k));
  }
  t.v = random_values(random, keys * s.dim, 1.0F, round);
  t.d_o = random_values(random, queries * s.dim, 1.0F, round);
  t.o = t.dq = std::vector<double>(t.q.size());
  t.dk = t.dv = std::vector<double>(t.k.size());
  t.lse.resize(static_cast<std::size_t>(queries));
  t.dlogits.resize(static_cast<std::size_t>(queries * s.seq_k));
  t.scores.resize(t.dlogits.size());
  t.dsinks.resize(static_cast<std::size_t>(s.heads_q));
  for (int h = 0; h < s.heads_q; ++h) {
    for (int i = 0; i < s.seq_q; ++i) add_row(s, h, i, t);
  }
  // A row that sees no key adds nothing, whatever its dO holds.
  for (std::size_t row = 0; row < t.lse.size(); ++row) {
    if (std::isinf(t.lse[row])) {
      std::fill_n(t.d_o.begin() + static_cast<long>(row) * s.dim, s.dim,
                  std::numeric_limits<float>::quiet_NaN());
    }
  }
  return t;
}

/// Largest error relative to the largest value, if any is not 0; NaN stays.
template <class T>
double error(const std::vector<double>& truth, const std::vector<T>& got) {
  double worst = 0.0, largest = 0.0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const double off = std::fabs(truth[i] - static_cast<double>(got[i]));
    if (std::isnan(off)) return off;
    worst = std::max(worst, off);
    largest = std::max(largest, std::fabs(truth[i]));
  }
  return largest == 0.0 ? worst : worst / largest;
}

void expect(const char* name, const char* quantity, double value, double bound) {
  const bool good = value <= bound;
  std::printf("%-28s %-4s %.1e of %.1e%s\n", name, quantity, value, bound, good ? "" : "  FAILED");
  if (!good) ++failures;
}

/// Rows of 16-bit elements, `width` columns of them, NaN behind the last.
template <Element kElement>
struct Rows {
  std::vector<Bits> data;
  tile::View view;
  Rows(const std::vector<float>& x, int dim, int width, int seq) {
    const int rows = static_cast<int>(x.size()) / dim;
    data.assign(static_cast<std::size_t>(rows * width + 64), kPoison);
    for (int r = 0; r < rows; ++r) {
      for (int d = 0; d < width; ++d) {
        data[r * width + d] = d < dim ? narrow<kElement>(x[r * dim + d]) : Bits{0};
      }
    }
    view = {data.data(), 0, static_cast<long long>(seq) * width, width};
  }
};

/// A float32 operand as pack_rows makes it.
template <int kPlanes = 2>
struct Planes {
  std::vector<Bits> data;
  std::vector<float> scales;
  tile::View view;
  int blocks;
  Planes(const std::vector<float>& x, int dim, int width, int seq, int heads)
      : blocks((seq + tile::kScaleRows - 1) / tile::kScaleRows) {
    data.assign(static_cast<std::size_t>(heads * seq * kPlanes * width), 0);
    for (int h = 0; h < heads; ++h) {
      for (int b = 0; b < blocks; ++b) pack_block(x, dim, width, seq, h, b);
    }
    view = {data.data(), 0, static_cast<long long>(seq) * kPlanes * width, kPlanes * width};
  }

 private:
  void pack_block(const std::vector<float>& x, int dim, int width, int seq, int h, int b) {
    const int first = b * tile::kScaleRows, last = std::min(seq, first + tile::kScaleRows);
    float top = 0.0F;
    for (int i = (h * seq + first) * dim; i < (h * seq + last) * dim; ++i) {
      top = std::max(top, std::fabs(x[i]));
    }
    scales.push_back(tile::power_below(top) * 0x1p-14F);
    for (int i = h * seq + first; i < h * seq + last; ++i) {
      for (int d = 0; d < dim; ++d) {
        const float scaled = x[i * dim + d] * tile::power_inverse(scales.back());
        const Bits high = narrow<Element::fp16>(scaled);
        data[i * kPlanes * width + d] = high;
        if (kPlanes == 1) continue;
        data[i * kPlanes * width + width + d] =
            narrow<Element::fp16>(scaled - widened<Element::fp16>(high));
      }
    }
  }
};

/// What the host makes of a spec's dropout.
/// A part of the offset lies in memory.
tile::DropoutBits dropout_bits(const Shape& s) {
  static const unsigned counter = 3;
  const DropoutMask mask = s.drops();
  if (mask.threshold() == 0) return {};
  return {{mask.key()[0], mask.key()[1]},
          mask.offset() - counter,
          &counter,
          static_cast<unsigned>(mask.threshold() - 1),
          static_cast<float>(mask.scale())};
}

/// The tensors of bias_at and is_visible: one of them does for both where a kernel takes no other.
struct Pairs {
  std::vector<float> bias;
  std::vector<Bits> half_bias;
  std::vector<unsigned char> mask;
  tile::PairTensors tensors;
  Pairs(const Shape& s, const tile::PairKind& kind) {
    if (!s.pairs) return;
    const int rows = s.alike ? 1 : s.seq_q;
    const auto count = static_cast<std::size_t>(s.first + rows * s.seq_k);
    bias.resize(count), half_bias.resize(count), mask.resize(count);
    // Keys side by side, or queries where the kernel must not rely on that.
    const int stride_s = kind.staged ? s.seq_k : 1, stride_d = kind.staged ? 1 : rows;
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < s.seq_k; ++j) {
        const int at = s.first + i * stride_s + j * stride_d;
        const bool visible = is_visible(s, i, j);
        bias[at] = visible || kind.mask ? bias_at(s, i, j) : -tile::infinity();
        half_bias[at] = kind.bias == tile::BiasType::bf16 ? narrow<Element::bf16>(bias[at])
                                                          : narrow<Element::fp16>(bias[at]);
        mask[at] = visible ? (j % 3 == 0 ? 255 : 1) : 0;
      }
    }
    const bool wide = kind.bias == tile::BiasType::float32;
    void* const from = wide ? static_cast<void*>(&bias[s.first]) : &half_bias[s.first];
    const int step = s.alike ? 0 : stride_s;
    if (kind.bias != tile::BiasType::none) tensors.bias = {from, 0, 0, step, stride_d};
    if (kind.mask) tensors.mask = {&mask[s.first], 0, 0, step, stride_d};
    tensors.type = kind.bias;
  }
};

/// Sums in fragment order to rows, as bwd_convert does.
std::vector<float> from_fragments(const std::vector<float>& sums, const Shape& s, int rows_q,
                                  int width) {
  std::vector<float> x;
  for (int h = 0; h < s.heads_q; ++h) {
    for (int i = 0; i < s.seq_q; ++i) {
      for (int d = 0; d < s.dim; ++d) {
        const int lane = i % 8 * 4 + d % 8 / 2, element = i % 16 / 8 * 2 + d % 2;
        x.push_back(s.scale *
                    sums[(h * rows_q + i / 16 * 16) * width + d / 8 * 128 + lane * 4 + element]);
      }
    }
  }
  return x;
}

}  // namespace
