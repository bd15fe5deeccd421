/// A problem of the emulated bwd_sm90 and its tensors as the kernels take them. The kernels are
/// included before.
#pragma once

#include <functional>
#include <limits>
#include <random>

#include "biases.h"
#include "block_lists.h"
#include "bool_masks.h"

namespace {

using namespace tilewise;
using bwd_sm90::Args;
using bwd_sm90::Config;
using bwd_sm90::Lengths;
using bwd_sm90::Lists;
using bwd_sm90::Mask;
using tile::Element;
using Bits = unsigned short;

constexpr int kFar = tile::Positions::kFar;
constexpr Bits kPoison = 0x7fff;  // NaN in both types
int failures = 0;

/// The caller's own functions of scores, in float64.
struct Formula {
  struct Score {
    double value, slope;
    bool visible;
  };
  std::function<Score(int b, int h, int i, int j, int queries, int keys, double x)> of;
  tile::Captures captures;
  expression::Function mask;  ///< of which a map is made, by `map`
  RunMap map;
};

struct Shape {
  int batch = 1, heads_q = 2, heads_k = 1, seq_q = 150, seq_k = 200, dim = 64, dim_v = 64;
  int low = -kFar, high = kFar;  ///< row i sees keys i + low <= j < i + high
  float scale = 0.125F, softcap = 0.0F, amplitude = 1.0F;
  bool alibi = false, d_lse = false, last_first = false;
  bool given_delta = false;
  bool sinks = false;  ///< 0.5 h of head h
  /// Packed sequences, in place of batch, seq_q and seq_k, with `tail` rows behind the last; `keys`
  /// alone: keys of each entry of a batch. Then low and high are without Sk - Sq.
  std::vector<int> queries = {}, keys = {};
  int tail = 0, top = kFar;
  unsigned blocks = 1;
  int section_heads = 1, apart = 1, parts = 1, sharers = 1;
  Blocks list = {};
  const Formula* formula = nullptr;
  Shows shows = {};
  double dropout = 0.0;
  const Added* bias = nullptr;
  unsigned values = 7;  ///< seed of what the operands hold
};

/// Where the rows of a sequence, or of an entry of a batch, lie.
struct Span {
  int entry, q_begin, k_begin, queries, keys;
};

/// (B, S, H, D) in memory; `at` is an element.
template <Element kElement>
struct Stored {
  int heads, seq, dim;
  std::vector<Bits> data;
  Stored(int batch, int heads_, int seq_, int dim_)
      : heads(heads_),
        seq(seq_),
        dim(dim_),
        data(std::size_t(batch) * heads_ * seq_ * dim_, kPoison) {}
  /// Where a row begins.
  std::size_t row(int b, int h, int s) const {
    return ((std::size_t(b) * seq + s) * heads + h) * dim;
  }
  Bits& at(int b, int h, int s, int d) { return data[row(b, h, s) + d]; }
  std::vector<double> values() const {
    std::vector<double> wide;
    for (const Bits x : data) wide.push_back(tile::widen<kElement>(x));
    return wide;
  }
  void randomise(std::mt19937& random, float amplitude) {
    std::normal_distribution<float> normal;
    for (Bits& x : data) x = Bits(tile::pack<kElement>(amplitude * normal(random), 0.0F));
  }
  /// `ragged`: rows of the first of two row axes, 0 where there is one.
  tile::TensorMapBytes map(int batch, int rows, int ragged = 0) {
    const long row = 2L * heads * dim;
    unsigned char* start = reinterpret_cast<unsigned char*>(data.data());
    emulator::Box box = {
        start, {dim, heads, seq, batch}, {0, 2L * dim, row, row * seq}, {64, 1, rows, 1}, 4};
    if (ragged > 0) {
      box = {start - ragged * row,
             {dim, heads, ragged, ragged + seq + 1, batch},
             {0, 2L * dim, row, row, row * seq},
             {64, 1, rows, 1, 1},
             5};
    }
    tile::TensorMapBytes bytes;
    std::memcpy(&bytes, &box, sizeof(box));
    return bytes;
  }
};

/// Sums of the largest error and of the largest value of a gradient.
struct Largest {
  double worst = 0.0, largest = 0.0;
  void add(double truth, float got) {
    const double off = std::fabs(truth - double(got));
    worst = std::isnan(off) ? off : std::isnan(worst) ? worst : std::max(worst, off);
    largest = std::max(largest, std::fabs(truth));
  }
  void expect(const char* name, const char* quantity, double bound) const {
    const double relative = worst / std::max(largest, 1e-3);
    const bool good = relative <= bound;
    std::printf("%-36s %-3s %.1e of %.1e%s\n", name, quantity, relative, bound,
                good ? "" : "  FAILED");
    if (!good) ++failures;
  }
};

}  // namespace
