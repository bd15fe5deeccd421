#include "harness/sample.h"

#include <algorithm>
#include <cstddef>

#include "harness/case_values.h"

namespace tilewise {
namespace {

constexpr int kSamples = 8;

/// Moves a view's start along axes 0 to 2 and cuts them.
Tensor part(const Tensor& whole, std::int64_t b, std::int64_t h, std::int64_t heads,
            std::int64_t row, std::int64_t rows) {
  if (!whole.defined()) return whole;
  Tensor t = whole;
  const std::int64_t offset = b * t.strides[0] + h * t.strides[1] + row * t.strides[2];
  t.data = static_cast<std::byte*>(t.data) + offset * dtype_bytes(t.dtype);
  t.sizes[0] = 1;
  t.sizes[1] = heads;
  t.sizes[2] = rows;
  return t;
}

std::int64_t moved(std::int64_t bound, std::int64_t delta) {
  return bound == Problem::kUnbounded ? bound : bound + delta;
}

}  // namespace

double reference_work(const Problem& p) {
  double pairs = 0.0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = p.sequence(b);
    for (std::int64_t i = 0; i < s.q_length; ++i) {
      const KeyRange keys = p.visible_keys(s, i);
      pairs += static_cast<double>(keys.end - keys.begin);
    }
  }
  return pairs * static_cast<double>(p.heads_q) * static_cast<double>(p.head_dim + p.head_dim_v);
}

bool can_sample(const Problem& p) {
  return !p.packed && !p.paged && !p.alibi_slopes.defined() && p.score_mod == nullptr &&
         !p.score_function.defined() && !p.mask_function.defined() && p.dropout.p == 0.0 &&
         !p.block_list.defined() && p.batch > 0 && p.seq_q > 0;
}

std::vector<Sample> choose_samples(const Problem& p, double max_work, std::uint64_t seed) {
  const double row_work =
      static_cast<double>(p.seq_k) * static_cast<double>(p.head_dim + p.head_dim_v) + 1.0;
  const double rows_of_head = max_work / kSamples / row_work;
  const bool whole = rows_of_head >= static_cast<double>(p.seq_q * p.group());
  const std::int64_t rows =
      whole ? p.seq_q
            : std::clamp<std::int64_t>(static_cast<std::int64_t>(rows_of_head), 1, p.seq_q);
  Random random(seed, Stream::q, 2);
  const auto pick = [&](int n, std::int64_t choices, int draw) -> std::int64_t {
    if (n == 0 || choices <= 1) return 0;
    if (n == 1) return choices - 1;
    return static_cast<std::int64_t>(random.uniform(n * 4 + draw) * static_cast<double>(choices));
  };
  std::vector<Sample> samples;
  for (int n = 0; n < kSamples; ++n) {
    Sample s;
    s.b = pick(n, p.batch, 0);
    s.head_k = pick(n, p.heads_k, 1);
    const std::int64_t first = s.head_k * p.group();
    s.head_begin = whole ? first : first + pick(n, p.group(), 2);
    s.head_end = whole ? first + p.group() : s.head_begin + 1;
    s.row_begin = pick(n, p.seq_q - rows + 1, 3);
    s.row_end = s.row_begin + rows;
    samples.push_back(s);
  }
  return samples;
}

std::vector<Sample> other_heads(const Problem& p, const Sample& sample, int most) {
  const std::int64_t heads = sample.head_end - sample.head_begin;
  const std::int64_t of_entry = p.heads_q / heads, all = p.batch * of_entry;
  const std::int64_t own = sample.b * of_entry + sample.head_begin / heads;
  const std::int64_t count = std::min<std::int64_t>(most, all - 1);
  std::vector<Sample> others;
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t index = (own + 1 + n * (all - 1) / count) % all;
    Sample other = sample;
    other.b = index / of_entry;
    other.head_begin = index % of_entry * heads;
    other.head_end = other.head_begin + heads;
    other.head_k = other.head_begin / p.group();
    others.push_back(other);
  }
  return others;
}

bool whole_keys(const Problem& p, const Sample& s) {
  return s.head_end - s.head_begin == p.group() && s.row_end - s.row_begin == p.seq_q;
}

Problem sample_problem(const Problem& problem, const Sample& s) {
  Problem p = problem;
  const std::int64_t heads = s.head_end - s.head_begin;
  const std::int64_t rows = s.row_end - s.row_begin;
  const std::int64_t keys = problem.sequence(s.b).k_length;
  const auto of_queries = [&](const Tensor& t) {
    return part(t, s.b, s.head_begin, heads, s.row_begin, rows);
  };
  const auto of_keys = [&](const Tensor& t) { return part(t, s.b, s.head_k, 1, 0, keys); };
  p.batch = 1;
  p.heads_q = heads;
  p.heads_k = 1;
  p.seq_q = p.total_q = rows;
  p.seq_k = p.total_k = keys;
  p.key_lengths = {};
  for (Tensor* t : {&p.q, &p.o, &p.lse, &p.d_o, &p.d_lse, &p.dq}) *t = of_queries(*t);
  for (Tensor* t : {&p.k, &p.v, &p.dk, &p.dv}) *t = of_keys(*t);
  for (Tensor* t : {&p.mask, &p.bias}) {
    *t = of_queries(*t);
    if (t->defined()) t->sizes[3] = keys;
  }
  p.dbias = {};  // they gather from all rows
  p.dsinks = {};
  if (p.sinks.defined()) {
    p.sinks.data = static_cast<float*>(p.sinks.data) + s.head_begin * p.sinks.strides[0];
    p.sinks.sizes[0] = heads;
  }
  // Row 0's diagonal is at keys - rows now; it was at row_begin + keys - seq_q.
  const std::int64_t delta = s.row_begin + rows - problem.seq_q;
  p.left = moved(p.left, -delta);
  p.right = moved(p.right, delta);
  if (p.causal == Causal::top_left) p.right = std::min(p.right, s.row_begin + rows - keys);
  p.causal = Causal::none;
  return p;
}

}  // namespace tilewise
