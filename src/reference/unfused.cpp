#include "reference/unfused.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "problem/philox.h"
#include "reference/arrays.h"
#include "reference/elements.h"
#include "reference/logits.h"

namespace tilewise::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// `x` as the input type holds it; a finite x that overflows it keeps its value.
float round_kept(DType dtype, float x) {
  const auto rounded = static_cast<float>(round_to(dtype, x));
  return std::isinf(rounded) && !std::isinf(x) ? x : rounded;
}

bool rounds_factors(const Problem& p) {
  return p.precision == Precision::tf32 && p.dtype == DType::float32;
}

/// Sums are float32: the arrays hold float32 values only.
void add(double& sum, float term) { sum = static_cast<float>(sum) + term; }

float dot(const double* a, const double* b, std::int64_t n) {
  float sum = 0.0F;
  for (std::int64_t d = 0; d < n; ++d) sum += static_cast<float>(a[d]) * static_cast<float>(b[d]);
  return sum;
}

void add_scaled(double* y, float a, const double* x, std::int64_t n) {
  for (std::int64_t d = 0; d < n; ++d) add(y[d], a * static_cast<float>(x[d]));
}

/// A key that a query sees.
struct Pair {
  std::int64_t j;
  Logit<float> logit;
  float prob;  ///< P in the input type
};

/// One query head, row by row, as reference.cpp has it in float64.
class HeadRows {
 public:
  HeadRows(const Problem& problem, const Arrays& arrays, std::int64_t b, std::int64_t h)
      : head_(problem, b, h), a_(arrays), visibility_(head_), dropout_(problem.dropout) {}
  HeadRows(const HeadRows&) = delete;
  HeadRows& operator=(const HeadRows&) = delete;

  const Head& head() const { return head_; }

  /// (F1) to (F6) for query i: S and P in the input type. Returns LSE.
  float start_row(std::int64_t i) {
    const Problem& p = head_.problem;
    float m = static_cast<float>(head_.sink);
    row_.clear();
    for (const std::int64_t j : visibility_.of_row(i)) {
      Logit<float> logit =
          make_logit(head_, i, j, p.scale * dot(query(a_.q, i), key(a_.k, j), p.head_dim));
      logit.y = round_kept(p.dtype, logit.y);
      if (logit.hidden()) continue;
      m = std::fmax(m, logit.y);
      row_.push_back({j, logit, 0.0F});
    }
    float l = std::isinf(head_.sink) ? 0.0F : std::exp(static_cast<float>(head_.sink) - m);
    for (const Pair& pair : row_) l += std::exp(pair.logit.y - m);
    for (Pair& pair : row_) pair.prob = round_kept(p.dtype, std::exp(pair.logit.y - m) / l);
    sink_prob_ = std::isinf(head_.sink) ? 0.0F : std::exp(static_cast<float>(head_.sink) - m) / l;
    return l == 0.0F ? -kInfinity : m + std::log(l);
  }

  /// (F14)
  void add_output(std::int64_t i, double* o) const {
    const Problem& p = head_.problem;
    for (const auto& [j, logit, prob] : row_) {
      add_scaled(o, factor(keep_factor(i, j) * prob), key(a_.v, j), p.head_dim_v);
    }
  }

  /// (B2) to (B10)
  void add_gradients(std::int64_t i) const {
    const Problem& p = head_.problem;
    const double* d_o = query(a_.d_o, i);
    const float d_lse = p.d_lse.defined() ? static_cast<float>(*query(a_.d_lse, i)) : 0.0F;
    std::vector<double> o(static_cast<std::size_t>(p.head_dim_v));
    add_output(i, o.data());
    const float delta = dot(d_o, o.data(), p.head_dim_v);
    for (const auto& [j, logit, prob] : row_) {
      const float z = keep_factor(i, j);
      add_scaled(key(a_.dv, j), factor(z * prob), d_o, p.head_dim_v);
      const float d_prob = z * dot(d_o, key(a_.v, j), p.head_dim_v);
      const float dy = prob * (d_prob - delta + d_lse);
      const float dx = dy * mod_derivative(head_, i, j, logit);
      add_capture_gradients(dy);
      if (p.dbias.defined()) {
        add(a_.dbias.at(head_.b, head_.h, head_.sequence.q_begin + i, j), dx);
      }
      const float ds = factor(p.scale * dx * cap_derivative(head_, logit));
      add_scaled(query(a_.dq, i), ds, key(a_.k, j), p.head_dim);
      add_scaled(key(a_.dk, j), ds, query(a_.q, i), p.head_dim);
    }
    if (p.sinks.defined()) add(*a_.dsinks_b.row(head_.b, head_.h, 0), sink_prob_ * (d_lse - delta));
  }

  double* query(const Array& array, std::int64_t i) const {
    return array.row(head_.b, head_.h, head_.sequence.q_begin + i);
  }

 private:
  double* key(const Array& array, std::int64_t j) const {
    return array.row(head_.b, head_.h_k, head_.sequence.k_begin + j);
  }
  void add_capture_gradients(float dy) const {
    if (head_.problem.dcaptures.empty()) return;
    for_each_capture_part(head_, [&](std::size_t capture, std::int64_t element, double part) {
      add(a_.dcaptures[capture].data[element], dy * static_cast<float>(part));
    });
  }
  /// P or dS as the product takes it.
  float factor(float x) const {
    return rounds_factors(head_.problem) ? static_cast<float>(round_to_tf32(x)) : x;
  }
  float keep_factor(std::int64_t i, std::int64_t j) const {
    if (head_.problem.dropout.p == 0.0) return 1.0F;
    const std::int64_t bh = head_.b * head_.problem.heads_q + head_.h;
    return dropout_.keeps(bh, i, j) ? static_cast<float>(dropout_.scale()) : 0.0F;
  }

  Head head_;
  const Arrays& a_;
  Visibility visibility_;
  DropoutMask dropout_;
  std::vector<Pair> row_;  ///< what the query sees, by key
  float sink_prob_ = 0.0F;
};

/// The given inputs as products take them.
void round_inputs(const Problem& p, const Arrays& arrays) {
  if (!rounds_factors(p)) return;
  for (const Array* array : {&arrays.q, &arrays.k, &arrays.v, &arrays.d_o}) {
    std::transform(array->data, array->data + array->elems(), array->data, round_to_tf32);
  }
}

/// Values as a tensor of the type holds them; float64 problems are measured as float32.
std::vector<double> rounded(DType dtype, const Array& array) {
  std::vector<double> values = array.values();
  for (double& value : values) value = round_to(dtype, value);
  return values;
}

}  // namespace

Forward unfused_forward(const Problem& p, Executor& executor) {
  const OwnedArrays owned(p, Pass::forward);
  const Arrays& arrays = owned.arrays();
  round_inputs(p, arrays);
  executor.parallel_for(p.batch * p.heads_q, [&](std::int64_t task, int) {
    HeadRows rows(p, arrays, task / p.heads_q, task % p.heads_q);
    for (std::int64_t i = 0; i < rows.head().sequence.q_length; ++i) {
      *rows.query(arrays.lse, i) = rows.start_row(i);
      rows.add_output(i, rows.query(arrays.o, i));
    }
  });
  return {.o = rounded(p.dtype, arrays.o), .lse = arrays.lse.values()};
}

Backward unfused_backward(const Problem& p, Executor& executor) {
  const OwnedArrays owned(p, Pass::backward);
  const Arrays& arrays = owned.arrays();
  round_inputs(p, arrays);
  // Key heads share dbias, and batch entries share nothing: as reference.cpp splits the work.
  const std::int64_t key_heads = p.batch * p.heads_k;
  const std::int64_t tasks =
      arrays.shares_gradients() ? std::min<std::int64_t>(key_heads, 1) : key_heads;
  executor.parallel_for(tasks, [&](std::int64_t task, int) {
    for (std::int64_t n = task; n < key_heads; n += tasks) {
      for (std::int64_t g = 0; g < p.group(); ++g) {
        HeadRows rows(p, arrays, n / p.heads_k, n % p.heads_k * p.group() + g);
        for (std::int64_t i = 0; i < rows.head().sequence.q_length; ++i) {
          rows.start_row(i);
          rows.add_gradients(i);
        }
      }
    }
  });
  Backward result{.dq = rounded(p.dtype, arrays.dq),
                  .dk = rounded(p.dtype, arrays.dk),
                  .dv = rounded(p.dtype, arrays.dv),
                  .dbias = {},
                  .dsinks = arrays.dsinks(),
                  .dcaptures = {}};
  if (p.dbias.defined()) result.dbias = rounded(p.dbias.dtype, arrays.dbias);
  for (std::size_t n = 0; n < p.dcaptures.size(); ++n) {
    result.dcaptures.push_back(rounded(p.dcaptures[n].dtype, arrays.dcaptures[n]));
  }
  return result;
}

}  // namespace tilewise::reference
