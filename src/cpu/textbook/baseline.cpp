/// baseline: the textbook, written to be read. Scores in memory, five plain steps, no library, no
/// tricks. Schedule, memory and numbers: baseline.md.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/flash/score_steps.h"
#include "cpu/flash/tiles.h"
#include "cpu/textbook/textbook.h"
#include "plan/accounting.h"

namespace tilewise::cpu {
namespace {

constexpr int kTaskRows = 32;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// Buffers, in the order of their items.
struct Buffers {
  float* scores;  ///< S, then P
  float* k_t;     ///< K^T of every (sequence, key head): D x Sk
  float* v;       ///< V of every (sequence, key head): Sk x Dv
  float* q;       ///< one row of Q a worker
  float* o;       ///< one row of O a worker
};

std::vector<MemoryPart> workspace_items(const Problem& p, int threads) {
  constexpr auto kRole = MemoryItem::Role::workspace;
  return {memory_part("S, then P", kRole, DType::float32, scores_shape(p)),
          memory_part("K^T", kRole, DType::float32, {p.batch, p.heads_k, p.head_dim, p.seq_k}),
          memory_part("V", kRole, DType::float32, {p.batch, p.heads_k, p.seq_k, p.head_dim_v}),
          memory_part("Q row", kRole, DType::float32, {threads, p.head_dim}),
          memory_part("O row", kRole, DType::float32, {threads, p.head_dim_v})};
}

class Baseline {
 public:
  Baseline(const Problem& p, const Context& context)
      : p_(p), steps_(p), executor_(context.executor), threads_(context.plan.threads) {
    WorkspaceCutter cut(context.workspace);
    std::int64_t scores = 1;
    for (const std::int64_t size : scores_shape(p)) scores *= size;
    const std::int64_t key_rows = p.batch * p.heads_k * p.seq_k;
    buffers_ = {.scores = cut.take<float>(scores),
                .k_t = cut.take<float>(key_rows * p.head_dim),
                .v = cut.take<float>(key_rows * p.head_dim_v),
                .q = cut.take<float>(threads_ * p.head_dim),
                .o = cut.take<float>(threads_ * p.head_dim_v)};
  }

  void run() const {
    run_tasks(executor_, threads_, p_.batch * p_.heads_k,
              [&](std::int64_t pair, int /*slot*/) { load_keys_of(pair); });
    const std::int64_t blocks = ceil_div(p_.seq_q, kTaskRows);
    run_tasks(executor_, threads_, p_.batch * p_.heads_q * blocks,
              [&](std::int64_t task, int slot) {
                const std::int64_t b = task / blocks / p_.heads_q;
                const Sequence sequence = p_.sequence(b);
                const std::int64_t i0 = task % blocks * kTaskRows;
                if (i0 >= sequence.q_length) return;
                attend({sequence, b, task / blocks % p_.heads_q, i0, 0,
                        static_cast<int>(std::min<std::int64_t>(kTaskRows, sequence.q_length - i0)),
                        static_cast<int>(sequence.k_length), p_.seq_k},
                       slot);
              });
    clear_rows_past_the_end(p_);
  }

 private:
  /// K^T and V of one (sequence, key head), as float32.
  void load_keys_of(std::int64_t pair) const {
    const std::int64_t b = pair / p_.heads_k;
    const std::int64_t h = pair % p_.heads_k;
    const Sequence sequence = p_.sequence(b);
    const auto d = static_cast<int>(p_.head_dim);
    const auto dv = static_cast<int>(p_.head_dim_v);
    float* k_t = buffers_.k_t + pair * p_.head_dim * p_.seq_k;
    float* v = buffers_.v + pair * p_.seq_k * p_.head_dim_v;
    std::vector<float> k_row(static_cast<std::size_t>(d));
    for (std::int64_t j = 0; j < sequence.k_length; ++j) {
      load_rows(p_.k, b, h, sequence.k_begin + j, 1, d, k_row.data(), d);
      for (int c = 0; c < d; ++c) k_t[c * p_.seq_k + j] = k_row[static_cast<std::size_t>(c)];
      load_rows(p_.v, b, h, sequence.k_begin + j, 1, dv, v + j * dv, dv);
    }
  }

  /// The five steps, for a block of rows of one head.
  void attend(const TilePlace& at, int slot) const {
    const std::int64_t row = at.sequence.q_begin + at.i0;
    float* s = buffers_.scores + score_at(p_, at.b, at.h, row);
    float m[kTaskRows];
    float l[kTaskRows];
    scores(at, slot, s);        // 1
    logits_and_max(at, s, m);   // 2
    exponentials(at, m, s, l);  // 3
    divide(at, l, s);           // 4
    if (p_.lse.defined()) write_lse(at, m, l);
    steps_.drop(at, s);
    weighted_sum(at, slot, s);  // 5
  }

  /// Step 1: S = scale * Q K^T. (F1)
  void scores(const TilePlace& at, int slot, float* s) const {
    const std::int64_t pair = at.b * p_.heads_k + at.h / p_.group();
    const float* k_t = buffers_.k_t + pair * p_.head_dim * p_.seq_k;
    const auto d = static_cast<int>(p_.head_dim);
    float* q = buffers_.q + slot * p_.head_dim;
    for (int r = 0; r < at.rows; ++r, s += at.ld) {
      load_rows(p_.q, at.b, at.h, at.sequence.q_begin + at.i0 + r, 1, d, q, d, p_.scale);
      std::fill_n(s, at.cols, 0.0F);
      for (int c = 0; c < d; ++c) {
        for (int j = 0; j < at.cols; ++j) s[j] += q[c] * k_t[c * p_.seq_k + j];
      }
    }
  }

  /// Step 2: the logits (F2) to (F4), and m, their maximum in each row. A sink is one more logit.
  void logits_and_max(const TilePlace& at, float* s, float* m) const {
    steps_.apply(at, s);
    steps_.hide(at, s);
    for (int r = 0; r < at.rows; ++r, s += at.ld) {
      m[r] = sink(at);
      for (int j = 0; j < at.cols; ++j) m[r] = std::max(m[r], s[j]);
      if (m[r] == kNothing) m[r] = 0.0F;  // sees nothing: -inf - -inf would be NaN
    }
  }

  /// Step 3: exp(S - m) in place, and l, their sum in each row.
  void exponentials(const TilePlace& at, const float* m, float* s, float* l) const {
    for (int r = 0; r < at.rows; ++r, s += at.ld) {
      l[r] = std::exp(sink(at) - m[r]);
      for (int j = 0; j < at.cols; ++j) {
        s[j] = std::exp(s[j] - m[r]);
        l[r] += s[j];
      }
    }
  }

  /// Step 4: P = exp(S - m) / l. (F6)
  void divide(const TilePlace& at, const float* l, float* s) const {
    for (int r = 0; r < at.rows; ++r, s += at.ld) {
      if (l[r] == 0.0F) continue;  // sees nothing: P = 0
      for (int j = 0; j < at.cols; ++j) s[j] /= l[r];
    }
  }

  /// Step 5: O = P V. (F14) A hidden key adds nothing, whatever its V holds.
  void weighted_sum(const TilePlace& at, int slot, const float* p) const {
    const std::int64_t pair = at.b * p_.heads_k + at.h / p_.group();
    const float* v = buffers_.v + pair * p_.seq_k * p_.head_dim_v;
    const auto dv = static_cast<int>(p_.head_dim_v);
    float* o = buffers_.o + slot * p_.head_dim_v;
    for (int r = 0; r < at.rows; ++r, p += at.ld) {
      std::fill_n(o, dv, 0.0F);
      for (int j = 0; j < at.cols; ++j) {
        if (p[j] == 0.0F) continue;
        for (int c = 0; c < dv; ++c) o[c] += p[j] * v[j * p_.head_dim_v + c];
      }
      store_rows(p_.o, at.b, at.h, at.sequence.q_begin + at.i0 + r, 1, dv, o, dv, nullptr);
    }
  }

  /// LSE = m + log l. (F5)
  void write_lse(const TilePlace& at, const float* m, const float* l) const {
    auto* lse = static_cast<float*>(p_.lse.data);
    for (int r = 0; r < at.rows; ++r) {
      lse[p_.lse.strides[0] * at.b + p_.lse.strides[1] * at.h +
          p_.lse.strides[2] * (at.sequence.q_begin + at.i0 + r)] =
          l[r] == 0.0F ? kNothing : m[r] + std::log(l[r]);
    }
  }

  float sink(const TilePlace& at) const {
    if (!p_.sinks.defined()) return kNothing;
    return static_cast<const float*>(p_.sinks.data)[at.h * p_.sinks.strides[0]];
  }

  const Problem& p_;
  ScoreSteps steps_;
  Executor& executor_;
  int threads_;
  Buffers buffers_{};
};

Preparation prepare(const KernelRow& /*row*/, const Problem& p, const Hardware& machine) {
  std::string reason = textbook_refusal(p);
  if (!reason.empty()) return reason;
  constexpr double kGflopsPerThread = 12.0;  // baseline.md
  Cost cost;
  cost.threads = machine.threads;
  cost.memory = workspace_items(p, machine.threads);
  double pairs = 1.0;
  for (const std::int64_t size : scores_shape(p)) pairs *= static_cast<double>(size);
  cost.bytes_moved = 4.0 * 8.0 * pairs;
  cost.ms = pairs * 2.0 * static_cast<double>(p.head_dim + p.head_dim_v) /
            (kGflopsPerThread * machine.threads * 1e6);
  return Prepared{std::move(cost), nullptr};
}

void run(const KernelRow& /*row*/, const Problem& problem, const Context& context) {
  Baseline(problem, context).run();
}

}  // namespace

constinit const KernelRow kBaselineForward{"baseline_fwd",
                                           "baseline",
                                           DeviceType::cpu,
                                           Pass::forward,
                                           "the textbook: S x S scores in memory, five plain steps",
                                           prepare,
                                           run};

}  // namespace tilewise::cpu
