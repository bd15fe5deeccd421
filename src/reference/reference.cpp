#include "reference/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/accounting.h"
#include "problem/philox.h"
#include "reference/arrays.h"
#include "reference/elements.h"
#include "reference/logits.h"

namespace tilewise {
namespace reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t d = 0; d < n; ++d) sum += a[d] * b[d];
  return sum;
}

/// y += a * x
void add_scaled(double* y, double a, const double* x, std::int64_t n) {
  for (std::int64_t d = 0; d < n; ++d) y[d] += a * x[d];
}

/// Maximum and sum of exp(Y - m) of a row, the sink included. Kept apart, because L = m + log(l)
/// loses l where m is huge; kernels that have only L use (B1).
struct RowSum {
  double m = -kInfinity;
  double l = 0.0;
  bool empty() const { return l == 0.0; }
  double lse() const { return empty() ? -kInfinity : m + std::log(l); }  // (F5)
  double probability(double y) const { return std::exp(y - m) / l; }     // (F6)
};

/// A key that a query sees.
struct Pair {
  std::int64_t j;
  Logit<double> logit;
};

/// Sums up a row. The maximum is an actual logit, so that l >= 1: l = 0 means that nothing was
/// seen. A NaN that is seen makes l NaN.
RowSum sum_row(const std::vector<Pair>& row, double sink) {
  RowSum sum;
  sum.m = sink;
  for (const Pair& pair : row) sum.m = std::fmax(sum.m, pair.logit.y);
  if (sink != -kInfinity) sum.l += std::exp(sink - sum.m);
  for (const Pair& pair : row) sum.l += std::exp(pair.logit.y - sum.m);
  return sum;
}

/// The loop over the queries of one head, and what it knows of each.
class HeadRows {
 public:
  HeadRows(const Problem& problem, const Arrays& arrays, std::int64_t b, std::int64_t h)
      : head_(problem, b, h), a_(arrays), visibility_(head_), dropout_(problem.dropout) {}

  HeadRows(const HeadRows&) = delete;
  HeadRows& operator=(const HeadRows&) = delete;

  const Head& head() const { return head_; }

  /// (F1) to (F5): logits and LSE of query i.
  void start_row(std::int64_t i) {
    const Problem& p = head_.problem;
    const double* q = query(a_.q, i);
    row_.clear();
    for (const std::int64_t j : visibility_.of_row(i)) {
      const double s = p.scale64 * dot(q, key(a_.k, j), p.head_dim);  // (F1)
      const Logit<double> logit = make_logit(head_, i, j, s);         // (F2) to (F4)
      if (!logit.hidden()) row_.push_back({j, logit});
    }
    sum_ = sum_row(row_, head_.sink);
  }

  /// (F14): O of query i, added to `o`.
  void add_output(std::int64_t i, double* o) const {
    for (const auto& [j, logit] : row_) {
      const double weight = keep_factor(i, j) * sum_.probability(logit.y);
      add_scaled(o, weight, key(a_.v, j), head_.problem.head_dim_v);
    }
  }

  /// (B2) to (B10) for query i.
  void add_gradients(std::int64_t i) const {
    const Problem& p = head_.problem;
    const double* q = query(a_.q, i);
    const double* d_o = query(a_.d_o, i);
    const double d_lse = p.d_lse.defined() ? *query(a_.d_lse, i) : 0.0;
    std::vector<double> o(static_cast<std::size_t>(p.head_dim_v));
    add_output(i, o.data());
    // A row that sees no key has O = 0, and its dO is ignored, even NaN: CONTRACT 3.
    const double delta = !row_.empty() ? dot(d_o, o.data(), p.head_dim_v) : 0.0;  // (B2)
    for (const auto& [j, logit] : row_) {
      const double z = keep_factor(i, j);
      const double prob = sum_.probability(logit.y);                   // (B1)
      add_scaled(key(a_.dv, j), z * prob, d_o, p.head_dim_v);          // (B3)
      const double d_prob = z * dot(d_o, key(a_.v, j), p.head_dim_v);  // (B4)
      const double dy = prob * (d_prob - delta + d_lse);               // (B5)
      const double dx = dy * mod_derivative(head_, i, j, logit);       // (B6)
      add_capture_gradients(dy);
      if (p.dbias.defined()) a_.dbias.at(head_.b, head_.h, head_.sequence.q_begin + i, j) += dx;
      const double ds = dx * cap_derivative(head_, logit);                    // (B7)
      add_scaled(query(a_.dq, i), p.scale64 * ds, key(a_.k, j), p.head_dim);  // (B8)
      add_scaled(key(a_.dk, j), p.scale64 * ds, q, p.head_dim);               // (B9)
    }
    if (head_.sink != -kInfinity) {
      *a_.dsinks_b.row(head_.b, head_.h, 0) +=
          sum_.probability(head_.sink) * (d_lse - delta);  // (B10)
    }
  }

  double lse() const { return sum_.lse(); }

  double* query(const Array& array, std::int64_t i) const {
    return array.row(head_.b, head_.h, head_.sequence.q_begin + i);
  }

 private:
  double* key(const Array& array, std::int64_t j) const {
    return array.row(head_.b, head_.h_k, head_.sequence.k_begin + j);
  }
  /// (B11): what the pair whose derivative was just taken adds to captured tensors.
  void add_capture_gradients(double dy) const {
    if (head_.problem.dcaptures.empty()) return;
    for_each_capture_part(head_, [&](std::size_t capture, std::int64_t element, double part) {
      a_.dcaptures[capture].data[element] += dy * part;
    });
  }
  /// (F13)
  double keep_factor(std::int64_t i, std::int64_t j) const {
    if (head_.problem.dropout.p == 0.0) return 1.0;
    const std::int64_t bh = head_.b * head_.problem.heads_q + head_.h;
    return dropout_.keeps(bh, i, j) ? dropout_.scale() : 0.0;
  }

  Head head_;
  const Arrays& a_;
  Visibility visibility_;
  DropoutMask dropout_;
  std::vector<Pair> row_;  ///< what the query sees, by key
  RowSum sum_;
};

void forward_loops(const Problem& p, const Arrays& arrays, Executor& executor) {
  executor.parallel_for(p.batch * p.heads_q, [&](std::int64_t task, int) {
    HeadRows rows(p, arrays, task / p.heads_q, task % p.heads_q);
    for (std::int64_t i = 0; i < rows.head().sequence.q_length; ++i) {
      rows.start_row(i);
      rows.add_output(i, rows.query(arrays.o, i));
      *rows.query(arrays.lse, i) = rows.lse();
    }
  });
}

void backward_loops(const Problem& p, const Arrays& arrays, Executor& executor) {
  const auto key_head = [&](std::int64_t b, std::int64_t h_k) {
    for (std::int64_t h = h_k * p.group(); h < (h_k + 1) * p.group(); ++h) {
      HeadRows rows(p, arrays, b, h);
      for (std::int64_t i = 0; i < rows.head().sequence.q_length; ++i) {
        rows.start_row(i);
        rows.add_gradients(i);
      }
    }
  };
  // One gradient of a bias or of a captured tensor may be that of all heads and the whole batch;
  // one after another then.
  const std::int64_t key_heads = p.batch * p.heads_k;
  const std::int64_t tasks =
      arrays.shares_gradients() ? std::min<std::int64_t>(key_heads, 1) : key_heads;
  executor.parallel_for(tasks, [&](std::int64_t task, int) {
    for (std::int64_t n = task; n < key_heads; n += tasks) key_head(n / p.heads_k, n % p.heads_k);
  });
}

void run_forward(const KernelRow&, const Problem& problem, const Context& context) {
  Arrays arrays(problem, Pass::forward);
  arrays.place(problem, context.workspace);
  forward_loops(problem, arrays, context.executor);
  write(problem.o, arrays.o);
  if (problem.lse.defined()) write(problem.lse, arrays.lse);
}

void run_backward(const KernelRow&, const Problem& problem, const Context& context) {
  Arrays arrays(problem, Pass::backward);
  arrays.place(problem, context.workspace);
  backward_loops(problem, arrays, context.executor);
  write(problem.dq, arrays.dq);
  write(problem.dk, arrays.dk);
  write(problem.dv, arrays.dv);
  if (problem.dbias.defined()) write(problem.dbias, arrays.dbias);
  if (problem.dsinks.defined()) from_double(problem.dsinks, arrays.dsinks());
  for (std::size_t n = 0; n < problem.dcaptures.size(); ++n) {
    if (problem.dcaptures[n].defined()) write(problem.dcaptures[n], arrays.dcaptures[n]);
  }
}

Preparation prepare(const KernelRow& row, const Problem& problem, const Hardware& machine) {
  // One multiply-add of doubles every four cycles: the loops are written for reading.
  constexpr double kFlopsPerMsAndThread = 1e6;
  Cost c;
  c.memory = Arrays(problem, row.pass).memory();
  c.ms = attention_flops(problem) / (kFlopsPerMsAndThread * machine.threads);
  for (const MemoryPart& part : c.memory) c.bytes_moved += static_cast<double>(part.bytes);
  return Prepared{std::move(c), nullptr};
}

}  // namespace

Forward forward_f64(const Problem& problem, Executor& executor) {
  const OwnedArrays owned(problem, Pass::forward);
  const Arrays& arrays = owned.arrays();
  forward_loops(problem, arrays, executor);
  return {.o = arrays.o.values(), .lse = arrays.lse.values()};
}

Backward backward_f64(const Problem& problem, Executor& executor) {
  const OwnedArrays owned(problem, Pass::backward);
  const Arrays& arrays = owned.arrays();
  backward_loops(problem, arrays, executor);
  return {.dq = arrays.dq.values(),
          .dk = arrays.dk.values(),
          .dv = arrays.dv.values(),
          .dbias = arrays.dbias.values(),
          .dsinks = arrays.dsinks(),
          .dcaptures = arrays.capture_gradients()};
}

}  // namespace reference

std::span<const KernelRow> reference_rows() {
  static const KernelRow rows[] = {
      {.name = "reference_fwd",
       .implementation = "reference",
       .device = DeviceType::cpu,
       .pass = Pass::forward,
       .summary = "float64, row by row: the definition",
       .prepare = reference::prepare,
       .run = reference::run_forward},
      {.name = "reference_bwd",
       .implementation = "reference",
       .device = DeviceType::cpu,
       .pass = Pass::backward,
       .summary = "float64, row by row: the definition",
       .prepare = reference::prepare,
       .run = reference::run_backward},
  };
  return rows;
}

}  // namespace tilewise
