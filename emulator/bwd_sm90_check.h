/// Checks of the emulated bwd_sm90, and of bwd_dq_sm90 beside it: the gradients by the formulas in
/// float64, the kernels' arguments.
#pragma once

#include <algorithm>
#include <numeric>
#include <optional>

#include "biases.h"
#include "block_lists.h"
#include "bool_masks.h"
#include "cuda/host/options.h"
#include "cuda/kernels/bwd_sm90/dq/kernel.cuh"
#include "cuda/kernels/bwd_sm90/kernel.cuh"
#include "cuda/kernels/bwd_sm90/tiles.h"
#include "problem/philox.h"
#include "wgmma.h"
//
#include "bwd_sm90_truth.h"

namespace tilewise::bwd_sm90 {
alignas(1024) unsigned char memory[256 * 1024];
}
namespace tilewise::bwd_dq_sm90 {
alignas(1024) unsigned char memory[256 * 1024];
}

namespace {

/// The launches of a config: the kernel, and bwd_dq_sm90 beside one that leaves dQ to it.
struct Launches {
  void (*kernel)(const tile::Optioned<bwd_sm90::ListArgs>& all, unsigned blocks);
  void (*dq)(const bwd_dq_sm90::RaggedArgs& args, unsigned blocks);
};

/// A problem, its tensors and its gradients by the formulas. One class for all configs of an
/// element: it need not be compiled for each.
template <Element kElement>
struct Check {
  const Config config;
  Shape s;
  Stored<kElement> q, k, v, o, d_o, dq, dk, dv;
  std::vector<float> lse, d_lse, slopes, sinks, true_delta;
  std::vector<bool> blind;                                      ///< of each row: it sees no key
  std::vector<double> q_values, k_values, v_values, do_values;  ///< of the inputs, as they lie
  std::vector<double> true_dq, true_dk, true_dv, true_diagonals, true_bias;

  std::vector<Span> sequences;
  std::vector<int> cu_q = {0}, cu_k = {0};
  BlockLists lists;
  BoolMask bools;
  Bias bias;
  std::vector<float> lse2, lse2_low;  ///< of each row in the log2 domain, and what is left of it

  /// With sizes of the tensors in memory: packed sequences are one entry.
  static Shape stored(const Config& c, Shape shape) {
    if (c.lengths == Lengths::packed) {
      shape.batch = 1;
      shape.seq_q = std::accumulate(shape.queries.begin(), shape.queries.end(), shape.tail);
      shape.seq_k = std::accumulate(shape.keys.begin(), shape.keys.end(), shape.tail);
    }
    return shape;
  }
  bool packed() const { return config.lengths == Lengths::packed; }
  /// That lists are of: sequences, where they are packed.
  int entries(const Shape& of) const { return packed() ? int(of.queries.size()) : of.batch; }
  int longest(const std::vector<int>& of, int otherwise) const {
    return packed() ? *std::max_element(of.begin(), of.end()) : otherwise;
  }
  Check(const Config& c, const Shape& shape)
      : config(c),
        s(stored(c, shape)),
        q(s.batch, s.heads_q, s.seq_q, s.dim),
        k(s.batch, s.heads_k, s.seq_k, s.dim),
        v(s.batch, s.heads_k, s.seq_k, s.dim_v),
        o(s.batch, s.heads_q, s.seq_q, s.dim_v),
        d_o(o),
        dq(q),
        dk(k),
        dv(v),
        lists(s.list, entries(shape), s.heads_q, longest(shape.queries, s.seq_q),
              longest(shape.keys, s.seq_k), [this](int b, int i, int j) { return sees(b, i, j); }),
        bools(s.shows, s.batch, s.heads_q, s.seq_q, s.seq_k),
        bias(s.bias, s.batch, s.heads_q, s.seq_q, s.seq_k) {
    std::mt19937 random(s.values);
    q.randomise(random, s.amplitude);
    k.randomise(random, s.amplitude);
    v.randomise(random, 1.0F);
    d_o.randomise(random, 1.0F);
    for (int i = 0; i < s.batch * s.heads_q * s.seq_q; ++i)
      d_lse.push_back(0.01F * float(i % 200 - 100));
    for (int h = 0; h < s.heads_q; ++h) slopes.push_back(0.02F * float(h + 1));
    for (int h = 0; s.sinks && h < s.heads_q; ++h) sinks.push_back(0.5F * float(h));
    lse.assign(d_lse.size(), 0.0F);
    lse2 = lse2_low = lse;
    true_delta = lse;
    blind.assign(lse.size(), false);
    true_dq.assign(q.data.size(), 0.0);
    true_dk.assign(k.data.size(), 0.0);
    true_dv.assign(v.data.size(), 0.0);
    true_diagonals.assign(std::size_t(entries(s)) * s.heads_q * diagonal_count(), 0.0);
    if (config.sums.bias)
      true_bias.assign(std::size_t(bias.batch * bias.heads) * s.seq_q * s.seq_k, 0.0);
    add_sequences();
    if (config.ragged()) poison_behind();
    q_values = q.values(), k_values = k.values(), v_values = v.values(), do_values = d_o.values();
    for (const Span& of : sequences) {
      for (int h = 0; h < s.heads_q; ++h) {
        for (int i = 0; i < of.queries; ++i) add_row(of, h, i);
      }
    }
    // Above head dim 128 the row refuses problems with such rows.
    if (!config.large_dim() && (config.hides_rows() || config.picks_rows())) poison_hidden();
  }
  static int padded(int rows, int to) { return (rows + to - 1) / to * to; }
  int padded_keys() const { return padded(longest(s.keys, s.seq_k), config.shape.block_n); }
  /// A head's sums by i - j, which begin at the last of the padded keys.
  int diagonal_count() const {
    return padded(longest(s.queries, s.seq_q), config.shape.chunk_rows) + padded_keys();
  }
  /// Rows that see no key hold NaN. CONTRACT 3
  void poison_hidden() {
    const auto of_row = [&](Stored<kElement>& t, std::size_t row) {
      const int b = int(row / s.seq_q / s.heads_q), h = int(row / s.seq_q % s.heads_q);
      std::fill_n(&t.at(b, h, int(row % s.seq_q), 0), t.dim, kPoison);
    };
    for (std::size_t row = 0; row < lse.size(); ++row) {
      if (!blind[row]) continue;
      of_row(q, row), of_row(d_o, row);
      d_lse[row] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  void add_sequences() {
    if (config.lengths == Lengths::packed) {
      for (std::size_t n = 0; n < s.queries.size(); ++n) {
        sequences.push_back({0, cu_q.back(), cu_k.back(), s.queries[n], s.keys[n]});
        cu_q.push_back(cu_q.back() + s.queries[n]);
        cu_k.push_back(cu_k.back() + s.keys[n]);
      }
    } else {
      for (int b = 0; b < s.batch; ++b)
        sequences.push_back({b, 0, 0, s.seq_q, s.keys.empty() ? s.seq_k : s.keys[b]});
    }
  }
  /// Rows that no sequence has are NaN.
  void poison_behind() {
    for (int b = 0; b < s.batch; ++b) {
      const Span& last = config.lengths == Lengths::packed ? sequences.back() : sequences[b];
      const auto poison = [&](Stored<kElement>& t, int from) {
        for (int row = from; row < t.seq; ++row) {
          for (int h = 0; h < t.heads; ++h) std::fill_n(&t.at(b, h, row, 0), t.dim, kPoison);
        }
      };
      poison(k, last.k_begin + last.keys), poison(v, last.k_begin + last.keys);
      for (Stored<kElement>* t : {&q, &d_o}) poison(*t, last.q_begin + last.queries);
    }
  }

  Dropout dropped() const { return {.p = s.dropout, .seed = 0x123456789abcULL, .offset = 5}; }
  /// Whether position and lengths show a pair.
  bool sees(int b, int i, int j) const {
    const int keys = s.keys.empty() ? s.seq_k : s.keys[b];
    const int shift = config.ragged() ? keys - (packed() ? s.queries[b] : s.seq_q) : 0;
    return j >= i + s.low + shift && j < std::min(keys, i + s.high + shift);
  }

  /// One query row: (F1) to (F11), (B1) to (B9).
  void add_row(const Span& of, int h, int i) {
    const int g = h / (s.heads_q / s.heads_k), b = of.entry;
    const int shift = config.ragged() ? of.keys - of.queries : 0;
    const int high = std::min(s.high + shift, config.ragged() ? s.top : kFar);
    const int begin = std::max(0, i + s.low + shift),
              end = std::max(begin, std::min(of.keys, i + high));
    const int r = of.q_begin + i, c = of.k_begin;
    const std::size_t q_row = q.row(b, h, r), o_row = o.row(b, h, r);
    const double *q_at = &q_values[q_row], *do_at = &do_values[o_row];
    std::vector<double> p(end - begin), gate(end - begin, 1.0);
    double m = -1e300, l = 0.0;
    for (int j = begin; j < end; ++j) {
      const double* k_at = &k_values[k.row(b, g, c + j)];
      double x = 0.0;
      for (int d = 0; d < s.dim; ++d) x += q_at[d] * k_at[d];
      x *= s.scale;
      if (s.softcap != 0.0F) {
        const double t = std::tanh(x / s.softcap);
        gate[j - begin] = 1.0 - t * t;
        x = s.softcap * t;
      }
      if (s.alibi) x -= slopes[h] * std::fabs(double(i + of.keys - of.queries - j));
      x += bias.at(b, h, i, j);
      if (s.formula != nullptr) {
        const int position = static_cast<int>(&of - sequences.data());
        const Formula::Score y = s.formula->of(position, h, i, j, of.queries, of.keys, x);
        x = y.visible ? y.value : -std::numeric_limits<double>::infinity();
        gate[j - begin] = y.visible ? y.slope : 0.0;
      }
      const int list = packed() ? static_cast<int>(&of - sequences.data()) : b;
      if (!lists.has(s.list, list, h, i, j) || !bools.has(b, h, i, j)) x = -tile::infinity();
      p[j - begin] = x;
      m = std::max(m, x);
    }
    if (s.sinks) m = std::max(m, double(sinks[h]));
    for (double& x : p) l += x = std::exp(x - m);
    const std::size_t row = (std::size_t(b) * s.heads_q + h) * s.seq_q + r;
    blind[row] = l == 0.0;
    if (s.sinks) l += std::exp(sinks[h] - m);
    const bool any = l > 0.0;
    if (!any) l = 1.0;
    lse[row] = !any ? -tile::infinity() : float(m + std::log(l));
    const double most = std::max(m * tile::kLog2e, double(tile::kLowest));
    lse2[row] =
        !any ? tile::infinity() : float(std::max(most + std::log2(l), double(tile::kLowest)));
    // A huge maximum leaves no digits for log2(l), in float64 neither.
    lse2_low[row] = !any ? 0.0F : float(most - lse2[row] + std::log2(l));
    double delta = 0.0;
    std::vector<double> kept(end - begin, 1.0);
    if (s.dropout > 0.0) {
      const DropoutMask mask(dropped());
      const std::int64_t pair = (&of - sequences.data()) * s.heads_q + h;
      for (int j = begin; j < end; ++j) kept[j - begin] = mask.keeps(pair, i, j) ? mask.scale() : 0;
    }
    std::vector<double> sums(s.dim_v, 0.0);
    for (int j = begin; j < end; ++j) {
      const double* v_at = &v_values[v.row(b, g, c + j)];
      const double weight = kept[j - begin] * p[j - begin] / l;
      for (int d = 0; d < s.dim_v; ++d) sums[d] += weight * v_at[d];
    }
    for (int d = 0; d < s.dim_v; ++d) {
      o.at(b, h, r, d) = Bits(tile::pack<kElement>(float(sums[d]), 0.0F));
      delta += sums[d] * do_at[d];
    }
    if (s.d_lse) delta -= d_lse[row];
    true_delta[row] = float(delta);
    for (int j = begin; j < end; ++j) {
      const std::size_t k_row = k.row(b, g, c + j), v_row = v.row(b, g, c + j);
      const double weight = kept[j - begin] * p[j - begin] / l;
      double dp = 0.0;
      for (int d = 0; d < s.dim_v; ++d) {
        dp += do_at[d] * v_values[v_row + d];
        true_dv[v_row + d] += weight * do_at[d];
      }
      dp *= kept[j - begin];
      const double dx = p[j - begin] / l * (dp - delta) * gate[j - begin], ds = dx * s.scale;
      if (config.sums.bias) true_bias[bias_place(b, h, i, j)] += dx;
      const std::size_t entry = packed() ? std::size_t(&of - sequences.data()) : std::size_t(b);
      true_diagonals[(entry * s.heads_q + h) * diagonal_count() + i - j + padded_keys() - 1] += dx;
      for (int d = 0; d < s.dim; ++d) {
        true_dq[q_row + d] += ds * k_values[k_row + d];
        true_dk[k_row + d] += ds * q_at[d];
      }
    }
  }

  void run(const char* name, double bound, const Launches& launches) {
    const int kM = config.shape.block_m, kChunk = config.shape.chunk_rows;
    const bool kPacked = config.lengths == Lengths::packed;
    bwd_sm90::ListArgs a;
    std::optional<MadeBits> bits;
    if (config.options.any()) bits.emplace(optioned_problem(), kM, true);
    const MadeLists made =
        make_lists(bits.has_value() && config.options.mask ? bits->bits : tile::MaskBits{});
    a.of_queries = made.of_queries, a.of_keys = made.of_keys;
    const int q_rows = kPacked ? s.seq_q : 0, k_rows = kPacked ? s.seq_k : 0;
    const int k_ragged = config.ragged() ? s.seq_k : 0;
    a.q = q.map(s.batch, kM, q_rows), a.o = o.map(s.batch, kM, q_rows);
    a.d_o = d_o.map(s.batch, kM, q_rows);
    a.k = k.map(s.batch, config.shape.block_n, k_ragged);
    a.v = v.map(s.batch, config.shape.block_n, k_ragged);
    // Offsets of self-attention are one tensor.
    const std::vector<int>& k_offsets = cu_q == cu_k ? cu_q : cu_k;
    a.of = {s.top,  s.keys.data(), 1, {cu_q.data()}, {k_offsets.data()}, int(cu_q.size()) - 1,
            q_rows, k_ragged};
    for (auto* t : {&dq, &dk, &dv}) std::fill(t->data.begin(), t->data.end(), kPoison);
    a.dq = dq.map(s.batch, config.large_dim() ? 64 : config.shape.chunk_box(), q_rows);
    a.dk = dk.map(s.batch, 64, k_rows), a.dv = dv.map(s.batch, 64, k_rows);
    // Sharers of a key head count as heads of keys.
    const int heads_k = s.heads_k * s.sharers;
    a.heads_q = s.heads_q, a.heads_k = heads_k, a.group = s.heads_q / heads_k;
    a.sharers = s.sharers;
    a.seq_q = s.seq_q, a.seq_k = s.seq_k;
    const auto blocks = [&](int rows, int size) {
      return kPacked ? rows / size + a.of.sequences + 1 : (rows + size - 1) / size;
    };
    a.rows_q = blocks(s.seq_q, kChunk) * kChunk;
    const int key_blocks = blocks(s.seq_k, config.shape.block_n);
    const int tiles = s.batch * s.heads_k * key_blocks;
    a.parts = s.parts;
    a.jobs = (config.large_dim() ? 1 : 2) * s.batch * s.heads_q * (a.rows_q / kChunk) +
             tiles * (s.parts * s.sharers + (config.sums.split ? 1 : 0));
    a.scale = s.scale, a.scale_log2 = s.scale * tile::kLog2e;
    a.offset_factor = config.fold_lse() ? -1.0F / s.scale : -tile::kLog2e;
    if (s.softcap != 0.0F) a.scale_cap = s.scale / s.softcap, a.cap_log2 = s.softcap * tile::kLog2e;
    if (s.alibi) a.alibi = slopes.data(), a.alibi_h = 1;
    a.low = s.low, a.high = s.high;
    a.order = {key_blocks, s.batch * heads_k, 1, s.section_heads, 1};
    a.lead = s.apart, a.lag = s.apart + s.batch % 2;
    a.last_first = s.last_first;
    a.lse_in = lse.data(), a.lse_b = kPacked ? 0 : s.heads_q * s.seq_q, a.lse_h = s.seq_q,
    a.lse_s = 1;
    if (s.d_lse) a.d_lse = d_lse.data(), a.d_lse_b = a.lse_b, a.d_lse_h = s.seq_q, a.d_lse_s = 1;
    if (s.sinks) a.sinks = sinks.data(), a.sinks_h = 1;
    if (s.given_delta) {
      a.delta_in = true_delta.data(), a.delta_rows = s.seq_q;
      // Beside a sink O tells which rows saw no key.
      if (!s.sinks) std::fill(o.data.begin(), o.data.end(), kPoison);
    }
    const std::size_t rows = std::size_t(s.batch) * s.heads_q * a.rows_q;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> offset(rows, nan), delta(rows, nan), sums(rows * config.columns_dq(), nan);
    a.offset = offset.data(), a.delta = delta.data(), a.dq_sum = sums.data();
    const std::size_t key_rows = config.sums.split ? std::size_t(tiles) * config.shape.block_n : 0;
    std::vector<float> dk_sums(key_rows * config.head_dim, 0.0F),
        dv_sums(key_rows * config.head_dim_v, 0.0F);
    a.dk_sum = dk_sums.data(), a.dv_sum = dv_sums.data();
    const int pairs_k = s.batch * heads_k * (config.spans ? bwd_sm90::SharedPlan::kMostSpans : 1);
    std::vector<unsigned> counters(1 + 2 * pairs_k + tiles + rows / kM * 4, 0);
    a.next_job = counters.data(), a.prepared = a.next_job + 1;
    a.finished = a.prepared + pairs_k, a.added = a.finished + pairs_k;
    a.turns = a.added + tiles;

    std::vector<float> diagonals;
    if (config.sums.diagonals) {
      const int floats = config.sums.deterministic ? tile::ExactSum::kFloats : 1;
      diagonals.assign(true_diagonals.size() * floats, 0.0F);
      a.diagonals = diagonals.data();
      a.diagonal_count = diagonal_count(), a.last_key = padded_keys() - 1;
    }
    tile::Optioned<bwd_sm90::ListArgs> all{a, {}, {}};
    if (s.formula != nullptr) all.captures = s.formula->captures;
    std::vector<float> low(rows, nan);
    if (bits.has_value()) all.options = cuda::kernel_options(optioned_problem(), bits->bits);
    if (config.options.bias()) all.options.bias_tiles = bias_tiles();
    std::vector<float> bias_sums;
    if (config.sums.bias) {
      const std::int64_t head = std::int64_t{padded_queries()} * padded_keys();
      bias_sums.assign(std::size_t(bias.batch * bias.heads * head), 0.0F);
      all.options.bias_sums = {bias_sums.data(), bias.batch > 1 ? bias.heads * head : 0,
                               bias.heads > 1 ? head : 0, padded_keys() / 8};
    }
    if (config.shifts()) {
      all.args.lse2_in = lse2.data(), all.args.low_in = lse2_low.data();
      all.args.delta_in = true_delta.data(), all.args.delta_rows = s.seq_q;
      all.args.offset_low = low.data();
    }
    launches.kernel(all, s.blocks);
    if (config.large_dim()) run_dq(a, launches);
    compare(name, "dQ", dq, true_dq, bound);
    compare(name, "dK", dk, true_dk, bound);
    compare(name, "dV", dv, true_dv, bound);
    if (config.sums.diagonals) compare_diagonals(name, diagonals, bound);
    if (config.sums.bias) compare_bias(name, bias_sums, bound);
  }
  int padded_queries() const { return (s.seq_q + 63) / 64 * 64; }
  /// Where an element's gradient lies.
  std::size_t bias_place(int b, int h, int i, int j) const {
    return ((std::size_t(bias.batch > 1 ? b : 0) * bias.heads + (bias.heads > 1 ? h : 0)) *
                s.seq_q +
            i) *
               s.seq_k +
           j;
  }
  /// Fragments of 16 queries x 8 keys, a lane of four floats with two of each row.
  void compare_bias(const char* name, const std::vector<float>& sums, double bound) const {
    Largest error;
    for (int b = 0; b < bias.batch; ++b) {
      for (int h = 0; h < bias.heads; ++h) {
        for (int i = 0; i < s.seq_q; ++i) {
          for (int j = 0; j < s.seq_k; ++j) {
            const std::size_t band =
                std::size_t(b * bias.heads + h) * (padded_queries() / 16) + i / 16;
            const std::size_t fragment = band * (padded_keys() / 8) + j / 8;
            const int lane = i % 8 * 4 + j % 8 / 2;
            const float sum = sums[fragment * 128 + lane * 4 + i % 16 / 8 * 2 + j % 2];
            error.add(true_bias[bias_place(b, h, i, j)], sum);
          }
        }
      }
    }
    error.expect(name, "bias", bound);
  }
  void compare_diagonals(const char* name, const std::vector<float>& got, double bound) const {
    Largest error;
    for (std::size_t i = 0; i < true_diagonals.size(); ++i) {
      float sum = got[i];
      if (config.sums.deterministic) {
        const auto* words = reinterpret_cast<const tile::u64*>(got.data());
        sum = float(tile::exact_sum(words + i * tile::ExactSum::kWords));
      }
      error.add(true_diagonals[i], sum);
    }
    error.expect(name, "i-j", bound);
  }
  tile::BiasTiles bias_tiles() {
    const long pitch = 2 * bias.pitch, head = pitch * bias.queries;
    const emulator::Box box = {reinterpret_cast<unsigned char*>(bias.narrow.data()),
                               {bias.keys, bias.heads, bias.queries, bias.batch},
                               {0, head, pitch, head * bias.heads},
                               {64, 1, config.options.pairs.staged ? config.shape.block_m : 1, 1},
                               4};
    tile::BiasTiles tiles = {
        .by_batch = bias.batch > 1, .by_head = bias.heads > 1, .by_query = bias.queries > 1};
    std::memcpy(&tiles.map, &box, sizeof(box));
    return tiles;
  }
  /// The launch that goes with one of bwd_sm90 without dQ.
  void run_dq(const bwd_sm90::RaggedArgs& of, const Launches& launches) {
    unsigned next = 0;
    const int row_blocks = of.rows_q / bwd_dq_sm90::kBlockM;
    bwd_dq_sm90::RaggedArgs a = {bwd_dq_sm90::args_beside(config, of), of.of};
    a.order = {row_blocks, s.batch * s.heads_q, 1, s.section_heads, 1};
    a.tiles = row_blocks * s.batch * s.heads_q;
    a.next_tile = &next;
    launches.dq(a, s.blocks);
  }
  /// Its options alone.
  Problem optioned_problem() {
    Problem p;
    p.device = {DeviceType::cuda, 0};
    p.batch = s.batch, p.heads_q = s.heads_q;
    p.seq_q = p.total_q = s.seq_q, p.seq_k = p.total_k = s.seq_k;
    bools.give(p, s.batch, s.heads_q, s.seq_q, s.seq_k);
    p.dropout = dropped();
    bias.give(p, s.batch, s.heads_q, s.seq_q, s.seq_k);
    return p;
  }
  /// The list in tiles of the kernel.
  MadeLists make_lists(const tile::MaskBits& mask) {
    Problem p;
    if (config.listed()) {
      const int shift = config.ragged() ? 0 : s.seq_k - s.seq_q;
      p.device = {DeviceType::cuda, 0};
      p.batch = entries(s), p.heads_q = s.heads_q, p.heads_k = s.heads_k;
      p.seq_q = longest(s.queries, s.seq_q), p.seq_k = longest(s.keys, s.seq_k);
      if (packed()) {
        p.packed = true, p.total_q = s.seq_q, p.total_k = s.seq_k;
        const auto offsets = [&](std::vector<int>& of) {
          return Tensor::contiguous(of.data(), DType::int32, {static_cast<long>(of.size())},
                                    p.device);
        };
        p.cu_seqlens_q = offsets(cu_q), p.cu_seqlens_k = offsets(cu_k);
      }
      if (s.low != -kFar) p.left = shift - s.low;
      if (s.high != kFar) p.right = s.high - 1 - shift;
      if (!s.keys.empty() && !packed())
        p.key_lengths = Tensor::contiguous(s.keys.data(), DType::int32, {s.batch}, p.device);
      lists.give(p, s.list);
      if (s.formula != nullptr) p.mask_function = s.formula->mask;
      if (mask.words != nullptr) bools.give(p, s.batch, s.heads_q, s.seq_q, s.seq_k);
    }
    return MadeLists(p, cuda::bwd_sm90_wanted_lists(config),
                     s.formula != nullptr ? s.formula->map : RunMap{}, mask);
  }
  void compare(const char* name, const char* quantity, Stored<kElement>& got,
               const std::vector<double>& truth, double bound) {
    Largest error;
    for (std::size_t i = 0; i < truth.size(); ++i) {
      error.add(truth[i], tile::widen<kElement>(got.data[i]));
    }
    error.expect(name, quantity, bound);
  }
};

template <Config kConfig>
void launch_kernel(const tile::Optioned<bwd_sm90::ListArgs>& all, unsigned blocks) {
  const auto run = [&](const auto& args) {
    emulator::run_grid(bwd_sm90::memory, blocks, kConfig.threads(),
                       [&] { bwd_sm90::kernel<kConfig>(args); });
  };
  if constexpr (kConfig.options.any()) {
    run(all);
  } else if constexpr (kConfig.expressions.any()) {
    run(tile::Expressed<bwd_sm90::ListArgs>{all.args, all.captures});
  } else {
    run(all.args);
  }
}
template <Config kConfig>
void launch_dq(const bwd_dq_sm90::RaggedArgs& args, unsigned blocks) {
  if constexpr (kConfig.large_dim()) {
    emulator::run_grid(bwd_dq_sm90::memory, blocks, bwd_dq_sm90::kThreads,
                       [&] { bwd_dq_sm90::kernel<bwd_dq_sm90::config_beside(kConfig)>(args); });
  }
}
template <Config kConfig>
void check(const char* name, const Shape& shape, double bound) {
  Check<kConfig.element>(kConfig, shape)
      .run(name, bound, {launch_kernel<kConfig>, launch_dq<kConfig>});
}

}  // namespace
