/// What decode_sm90 and mla_sm90 share on the emulator: a case's tensors, the parts of a launch,
/// and the comparison of O and LSE with the formulas.
#pragma once

#include <cstdio>
#include <random>
#include <vector>

#include "cuda/kernels/rows/combine.cuh"
#include "decode_sm90_truth.h"

namespace tilewise::combine {
alignas(16) unsigned char memory[16];
}

namespace {

int failures = 0;

Hardware h200() {
  Hardware machine;
  machine.arch = 90;
  machine.multiprocessors = 132;
  machine.bandwidth_gbps = 4000.0;
  return machine;
}

/// Pages or entries of keys, and where each key lies.
struct Made {
  std::mt19937 random{5};
  Problem p;
  int pages = 0;
  Keys keys;

  explicit Made(const Case& c) : p(make_problem(c)), keys(make_keys(c, p, pages, random)) {}
};

/// The tensors of a case. Keys that no query of their entry sees stay NaN. With `values_in_keys` V
/// is the first columns of K.
struct MadeCase : Made {
  int batch, rows;
  Rows q, o, k, v;
  std::vector<float> lse, slopes, sinks;
  std::vector<int> lengths;
  TreeWords tree;

  MadeCase(const Case& c, bool values_in_keys)
      : Made(c),
        batch(static_cast<int>(p.batch)),
        rows(c.page > 0 ? c.page : static_cast<int>(p.seq_k)),
        q(batch, c.heads_q, c.queries, c.dim),
        o(batch, c.heads_q, c.queries, c.dim_v),
        k(pages, c.heads_k, rows, c.dim),
        v(values_in_keys ? 0 : pages, c.heads_k, rows, c.dim_v),
        lse(static_cast<std::size_t>(p.query_rows()), NAN),
        lengths(c.keys),
        tree(batch, c.nodes()) {
    for (int h = 0; h < c.heads_q; ++h) {
      slopes.push_back(static_cast<float>(slope(c, h)));
      sinks.push_back(sink(h));
    }
    fill(c, values_in_keys);
    give(c, values_in_keys);
  }
  MadeCase(const MadeCase&) = delete;
  MadeCase& operator=(const MadeCase&) = delete;

 private:
  void fill(const Case& c, bool values_in_keys) {
    for (int b = 0; b < batch; ++b) {
      for (int i = 0; i < c.queries; ++i) q.fill(b, i, random);
      const KeyRange first = p.visible_keys({0, c.queries, 0, c.keys[b]}, 0);
      for (int j = static_cast<int>(first.begin); j < c.keys[b]; ++j) {
        const Place at = keys.at(b, j);
        k.fill(at.batch, at.row, random);
        if (!values_in_keys) v.fill(at.batch, at.row, random);
      }
    }
  }
  void give(const Case& c, bool values_in_keys) {
    p.q = q.tensor(batch), p.k = k.tensor(pages), p.o = o.tensor(batch);
    p.v = values_in_keys ? p.k : v.tensor(pages);
    p.v.sizes[3] = c.dim_v;
    p.lse = Tensor::contiguous(lse.data(), DType::float32, {batch, c.heads_q, c.queries}, p.device);
    if (c.expanded) p.k.strides[0] = p.v.strides[0] = 0;
    if (c.lengths)
      p.key_lengths = Tensor::contiguous(lengths.data(), DType::int32, {batch}, p.device);
    if (c.page > 0) {
      p.block_table =
          Tensor::contiguous(keys.table.data(), DType::int32, {batch, keys.columns}, p.device);
    }
    if (c.alibi) {
      p.alibi_slopes = Tensor::contiguous(slopes.data(), DType::float32, {1, c.heads_q}, p.device);
      p.alibi_slopes.strides[0] = 0;
    }
    tree.give(p);
    if (c.sinks) p.sinks = Tensor::contiguous(sinks.data(), DType::float32, {c.heads_q}, p.device);
  }
};

/// The workspace of a launch: the counter, and O and statistics of parts.
struct Parts {
  static constexpr unsigned long long kAny = 0x123456789abcdefULL;
  unsigned long long word = kAny;
  std::vector<float> o, m;

  template <class Args>
  explicit Parts(Args& args)
      : o(static_cast<std::size_t>(args.most_parts * args.part_rows * args.part_columns), NAN),
        m(static_cast<std::size_t>(2 * args.most_parts * args.part_rows), NAN) {
    args.counter = {&word, 77};
    args.o_part = o.data();
    args.m_part = m.data();
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  /// The counter is as it must be left: where all items run at once nobody asks.
  bool counted() const { return word == 0 || word == kAny; }
};

/// What combine takes of a launch with more than one part.
template <class Args>
combine::Args merged_of(const Case& c, const Args& args) {
  combine::Args merged;
  merged.o = args.o_part;
  merged.m = args.m_part;
  merged.parts = args.most_parts;
  merged.rows = args.part_rows;
  merged.l = args.m_part + merged.parts * merged.rows;
  merged.to = args.o;
  merged.lse_to = args.lse;
  merged.lse_b = args.lse_b, merged.lse_h = args.lse_h, merged.lse_s = args.lse_s;
  merged.heads = c.heads_q;
  merged.seq_q = c.queries;
  merged.head_dim_v = c.dim_v;
  merged.keys = args.keys;
  return merged;
}

/// Compares every row, prints the errors and counts a failure.
void report(const Case& c, MadeCase& made, Rows& values, int parts, bool counted) {
  double o_error = 0.0, lse_error = counted ? 0.0 : 1e9;
  for (int b = 0; b < made.batch; ++b) {
    for (int h = 0; h < c.heads_q; ++h) {
      for (int i = 0; i < c.queries; ++i) {
        compare(c, made.p, made.keys, b, h, i, made.q, made.k, values, made.o.at(b, h, i),
                made.lse[(static_cast<std::size_t>(b) * c.heads_q + h) * c.queries + i], o_error,
                lse_error);
      }
    }
  }
  for (std::size_t i = 0; i < made.o.data.size(); ++i) {  // nothing is written beside the rows
    if (static_cast<int>(i % made.o.pitch) >= made.o.dim && made.o.data[i] != kNan) o_error = 1e9;
  }
  // P and O are rounded to bf16: 2^-9 of the largest |V|, about 4, and as much again.
  const bool good = o_error < 0.03 && lse_error < 1.0;
  std::printf("%s %s: %d parts, O off by %.4f, LSE by %.2f of its bound\n", good ? "ok" : "FAILED",
              c.name, parts, o_error, lse_error);
  failures += good ? 0 : 1;
}

void refused(const Case& c, const std::string& why) {
  std::printf("FAILED %s: %s\n", c.name, why.c_str());
  ++failures;
}

}  // namespace
