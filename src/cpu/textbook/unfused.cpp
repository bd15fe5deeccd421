#include "cpu/textbook/unfused.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu/flash/tiles.h"
#include "cpu/micro/elements.h"
#include "cpu/textbook/blas.h"
#include "cpu/textbook/scores_bias_gradient.h"
#include "cpu/textbook/textbook.h"
#include "cpu/textbook/unfused_products.h"
#include "cpu/textbook/way_back.h"
#include "plan/accounting.h"
#include "plan/time_model.h"

namespace tilewise::cpu {
namespace {

using Role = MemoryItem::Role;

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kLeastTaskRows = 64;

/// How the work is cut. NOTE: rows of a task depend on the sequence's own length and not on the
/// batch, so that a sequence's result does not either (CONTRACT 14).
struct Cut {
  std::int64_t blocks;  ///< tasks of one head
  Cut(std::int64_t heads, int threads) {
    const std::int64_t wanted = std::int64_t{2} * threads;
    blocks = heads >= wanted ? 1 : ceil_div(wanted, std::max<std::int64_t>(heads, 1));
  }
  std::int64_t rows(std::int64_t length) const {
    return std::max(kLeastTaskRows, round_up(ceil_div(length, blocks), 16));
  }
};

class Unfused {
 public:
  Unfused(const Problem& p, const UnfusedPasses& passes, int threads)
      : p_(p),
        passes_(passes),
        threads_(threads),
        backward_(p.pass == Pass::backward),
        keeps_(p.saved.data != nullptr || p.saved.bytes > 0),
        queries_(p.heads_q, threads),
        keys_(p.heads_k, threads),
        steps_(p) {}

  std::vector<MemoryPart> memory() {
    std::vector<MemoryPart> items;
    for (const Part& part : parts()) items.push_back(part.item);
    return items;
  }

  void run(const Context& context) {
    Blas::require_room(context.executor.concurrency());
    const Blas::OneThread one_thread(*Blas::get());
    blas_ = Blas::get();
    rows_ = &row_passes(best_isa());
    products_ = {blas_, rows_};
    executor_ = &context.executor;
    place(context);
    load_operands();
    backward_ ? run_backward() : run_forward();
    clear_rows_past_the_end(p_);
  }

 private:
  /// One buffer: its item, and the member that points to it.
  struct Part {
    MemoryPart item;
    float** at;
  };

  // --- memory ---

  std::vector<Part> parts() {
    std::vector<Part> parts;
    const auto add = [&](const char* name, Role role, float** at,
                         std::span<const std::int64_t> shape) {
      parts.push_back({memory_part(name, role, DType::float32, shape), at});
    };
    const std::array<std::int64_t, 4> scores = scores_shape(p_);
    const std::span statistics = std::span(scores).first(3);
    if (!backward_ || keeps_) {  // what forward keeps, whether or not this call does
      add("S", Role::saved, &s_, scores);
      add("P", Role::saved, &prob_, scores);
    }
    if (!keeps_) {
      add(steps_.nonlinear() && backward_ ? "P" : "S, then P", Role::workspace, &prob_, scores);
      if (steps_.nonlinear() && backward_) add("S", Role::workspace, &s_, scores);
    }
    if (!backward_ && keeps_ && steps_.has_dropout()) {
      add("Z * P", Role::workspace, &dropped_, scores);
    }
    if (!backward_ || !keeps_) {
      add("m", Role::workspace, &m_, statistics);
      add("l", Role::workspace, &l_, statistics);
    }
    if (backward_) {
      add("dP, then dS", Role::workspace, &dp_, scores);
      add("delta", Role::workspace, &delta_, statistics);
      if (steps_.nonlinear()) {
        add("cap and mod strips", Role::workspace, &strips_,
            std::array<std::int64_t, 2>{threads_, WayBack::scratch_elems(p_)});
      }
    }
    const auto copy = [&](const char* name, const Tensor& t, float** at) {
      if (direct(t)) return;
      add(name, Role::workspace, at,
          std::array{p_.stored_batch(), t.sizes[1], t.sizes[2], t.sizes[3]});
    };
    copy("Q as float32", p_.q, &q_copy_);
    copy("K as float32", p_.k, &k_copy_);
    copy("V as float32", p_.v, &v_copy_);
    if (backward_) copy("dO as float32", p_.d_o, &do_copy_);
    const bool all_direct =
        backward_ ? direct(p_.dq) && direct(p_.dk) && direct(p_.dv) : direct(p_.o);
    if (!all_direct) {
      add("results as float32", Role::workspace, &results_,
          std::array<std::int64_t, 2>{threads_, result_floats()});
    }
    return parts;
  }

  /// Floats of the largest block of results that a task makes.
  std::int64_t result_floats() const {
    const std::int64_t rows = std::min(queries_.rows(p_.seq_q), round_up(p_.seq_q, 16));
    if (!backward_) return rows * p_.head_dim_v;
    const std::int64_t keys = std::min(keys_.rows(p_.seq_k), round_up(p_.seq_k, 16));
    return std::max(rows * p_.head_dim, keys * std::max(p_.head_dim, p_.head_dim_v));
  }

  void place(const Context& context) {
    WorkspaceCutter workspace(context.workspace);
    WorkspaceCutter saved(p_.saved.data);
    std::int64_t needed = 0;
    for (const Part& part : parts()) {
      const std::int64_t elems = part.item.bytes / static_cast<std::int64_t>(sizeof(float));
      if (part.item.role == Role::workspace) {
        needed += align_workspace(part.item.bytes);
        *part.at = workspace.take<float>(elems);
      } else if (keeps_) {
        *part.at = saved.take<float>(elems);
      }
    }
    if (needed > context.plan.workspace_bytes) {
      throw InvalidArgument("plan has " + std::to_string(context.plan.workspace_bytes) +
                            " workspace bytes: this call needs " + std::to_string(needed) +
                            "; plan with the same saved state");
    }
    if (s_ == nullptr) s_ = prob_;  // S turns into P in place
  }

  bool in_place() const { return s_ == prob_; }

  // --- operands and products ---

  void load_operands() {
    load_operand(p_.q, p_.packed, *executor_, threads_, q_copy_);
    load_operand(p_.k, p_.packed, *executor_, threads_, k_copy_);
    load_operand(p_.v, p_.packed, *executor_, threads_, v_copy_);
    q_ = operand(p_.q, p_.packed, q_copy_);
    k_ = operand(p_.k, p_.packed, k_copy_);
    v_ = operand(p_.v, p_.packed, v_copy_);
    if (!backward_) return;
    load_operand(p_.d_o, p_.packed, *executor_, threads_, do_copy_);
    do_ = operand(p_.d_o, p_.packed, do_copy_);
  }

  /// Where a task's rows of a result are computed: in place, or in the slot's buffer.
  struct Result {
    const Tensor& tensor;
    float* data;
    std::int64_t ld;
    std::int64_t b, h, row;
  };

  Result result(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t row, int slot) const {
    if (direct(t)) {
      return {t, static_cast<float*>(t.data) + offset_of(t, b, h, row), t.strides[2], b, h, row};
    }
    return {t, results_ + slot * result_floats(), t.sizes[3], b, h, row};
  }

  static void finish(const Result& r, std::int64_t rows) {
    if (direct(r.tensor)) return;
    store_rows(r.tensor, r.b, r.h, r.row, static_cast<int>(rows),
               static_cast<int>(r.tensor.sizes[3]), r.data, r.ld, nullptr);
  }

  // --- tasks ---

  /// A task's block of query rows, with the scores of all keys.
  template <class Body>
  void for_query_blocks(const Body& body) const {
    const std::int64_t tasks = p_.batch * p_.heads_q * queries_.blocks;
    run_tasks(*executor_, threads_, tasks, [&](std::int64_t task, int slot) {
      const std::int64_t head = task / queries_.blocks;
      const std::int64_t b = head / p_.heads_q;
      const Sequence sequence = p_.sequence(b);
      const std::int64_t most = queries_.rows(sequence.q_length);
      const std::int64_t i0 = task % queries_.blocks * most;
      if (i0 >= sequence.q_length) return;
      const auto rows = static_cast<int>(std::min(most, sequence.q_length - i0));
      body({sequence, b, head % p_.heads_q, i0, 0, rows, static_cast<int>(sequence.k_length),
            p_.seq_k},
           slot);
    });
  }

  /// Place of the block's first score in an S x S buffer.
  std::int64_t at(const TilePlace& block) const {
    return score_at(p_, block.b, block.h, block.sequence.q_begin + block.i0);
  }
  /// Place of its first row in a buffer of row statistics.
  std::int64_t statistics_at(const TilePlace& block) const {
    return p_.query_row(block.b, block.h, block.sequence.q_begin + block.i0);
  }

  PassTools tools(std::int64_t h) const {
    const float sink = p_.sinks.defined()
                           ? static_cast<const float*>(p_.sinks.data)[h * p_.sinks.strides[0]]
                           : kNothing;
    return {p_, steps_, *rows_, sink};
  }

  /// S = Q K^T, then P.
  void probabilities(const TilePlace& block) const {
    const Sequence& q = block.sequence;
    float* s = s_ + at(block);
    float* p = prob_ + at(block);
    if (block.cols > 0) {
      blas_->multiply(block.rows, block.cols, p_.head_dim,
                      {q_.at(block.b, block.h, q.q_begin + block.i0), q_.ld},
                      {k_.at(block.b, block.h / p_.group(), q.k_begin), k_.ld, true}, 0.0F, s,
                      block.ld);
    }
    const std::int64_t row = statistics_at(block);
    for_strips(block, passes_.strip_scores, [&](const TilePlace& strip, int r) {
      passes_.probabilities(tools(block.h), strip, s + r * block.ld, p + r * block.ld, m_ + row + r,
                            l_ + row + r);
    });
  }

  /// Z * P (F13) in `to`, which may be P itself.
  void drop(const TilePlace& block, float* to) const {
    const float* p = prob_ + at(block);
    for (int r = 0; p != to && r < block.rows; ++r) {
      std::copy_n(p + r * block.ld, block.cols, to + r * block.ld);
    }
    steps_.drop(block, to);
  }

  // --- forward ---

  void run_forward() const {
    for_query_blocks([&](const TilePlace& block, int slot) { forward_block(block, slot); });
  }

  void forward_block(const TilePlace& block, int slot) const {
    const Sequence& sequence = block.sequence;
    const std::int64_t row = sequence.q_begin + block.i0;
    probabilities(block);
    if (p_.lse.defined()) write_lse(block);
    float* p = (dropped_ != nullptr ? dropped_ : prob_) + at(block);
    if (steps_.has_dropout()) drop(block, p);
    const Result o = result(p_.o, block.b, block.h, row, slot);  // (F14) O
    products_.multiply(block.rows, p_.head_dim_v, block.cols, {p, block.ld},
                       v_.at(block.b, block.h / p_.group(), sequence.k_begin), v_.ld, false, o.data,
                       o.ld);
    finish(o, block.rows);
  }

  /// (F11) LSE = m + log l; -inf for a row that saw nothing.
  void write_lse(const TilePlace& block) const {
    const std::int64_t first = statistics_at(block);
    auto* lse = static_cast<float*>(p_.lse.data);
    for (int r = 0; r < block.rows; ++r) {
      const float l = l_[first + r];
      lse[offset_of(p_.lse, block.b, block.h, block.sequence.q_begin + block.i0 + r)] =
          l == 0.0F ? kNothing : m_[first + r] + std::log(l);
    }
  }

  // --- backward ---

  void run_backward() const {
    if (!keeps_ || steps_.has_dropout()) {
      for_query_blocks([&](const TilePlace& block, int /*slot*/) {
        if (!keeps_) probabilities(block);
        if (steps_.has_dropout()) drop(block, dp_ + at(block));
      });
    }
    const float* dropped = steps_.has_dropout() ? dp_ : prob_;
    key_gradient(p_.dv, dropped, do_);  // (B3)
    for_query_blocks([&](const TilePlace& block, int slot) {
      score_gradient(block, slot);
      if (!p_.dbias.defined()) query_gradient(block, slot);
    });
    if (p_.dbias.defined()) {
      scores_bias_gradient(p_, dp_, *executor_, threads_);
      for_query_blocks([&](const TilePlace& block, int slot) {
        if (steps_.nonlinear()) {
          way_back(slot).run(block, s_ + at(block), dp_ + at(block), {.mod = false, .cap = true});
        }
        scale(block);
        query_gradient(block, slot);
      });
    }
    key_gradient(p_.dk, dp_, q_);  // (B9)
    if (p_.dsinks.defined()) sink_gradient();
  }

  /// dP = dO V^T (B4), and from it in place: dX where dbias is wanted, else scale * dS. (B5) to
  /// (B7)
  void score_gradient(const TilePlace& block, int slot) const {
    const Sequence& sequence = block.sequence;
    const std::int64_t row = sequence.q_begin + block.i0;
    float* dp = dp_ + at(block);
    if (block.cols > 0) {
      blas_->multiply(block.rows, block.cols, p_.head_dim_v,
                      {do_.at(block.b, block.h, row), do_.ld},
                      {v_.at(block.b, block.h / p_.group(), sequence.k_begin), v_.ld, true}, 0.0F,
                      dp, block.ld);
    }
    float* delta = delta_ + statistics_at(block);
    for (int r = 0; r < block.rows; ++r) {
      delta[r] = p_.d_lse.defined()
                     ? static_cast<const float*>(
                           p_.d_lse.data)[offset_of(p_.d_lse, block.b, block.h, row + r)]
                     : 0.0F;
    }
    const bool linear = !steps_.nonlinear();
    const float factor = linear && !p_.dbias.defined() ? p_.scale : 1.0F;
    const float* p = prob_ + at(block);
    for_strips(block, passes_.strip_scores, [&](const TilePlace& strip, int r) {
      passes_.score_gradient(tools(block.h), strip, p + r * block.ld, factor, dp + r * block.ld,
                             delta + r);
    });
    if (linear) return;
    const bool all_the_way = !p_.dbias.defined();
    way_back(slot).run(block, s_ + at(block), dp, {.mod = true, .cap = all_the_way});
    if (all_the_way) scale(block);
  }

  WayBack way_back(int slot) const {
    return {p_, steps_, strips_ + slot * WayBack::scratch_elems(p_)};
  }

  /// dS times scale, for dQ and dK.
  void scale(const TilePlace& block) const {
    for (int r = 0; r < block.rows; ++r) {
      float* row = dp_ + at(block) + r * block.ld;
      rows_->scale(block.cols, p_.scale, row, row);
    }
  }

  /// (B8) dQ = scale * dS K; the scale is in dS.
  void query_gradient(const TilePlace& block, int slot) const {
    const Sequence& sequence = block.sequence;
    const Result dq = result(p_.dq, block.b, block.h, sequence.q_begin + block.i0, slot);
    products_.multiply(block.rows, p_.head_dim, block.cols, {dp_ + at(block), block.ld},
                       k_.at(block.b, block.h / p_.group(), sequence.k_begin), k_.ld, false,
                       dq.data, dq.ld);
    finish(dq, block.rows);
  }

  /// Rows of dK or dV: scores^T times Q or dO, summed over the query heads of a key head in their
  /// order.
  void key_gradient(const Tensor& t, const float* scores, const Operand& rows_of) const {
    const std::int64_t dim = t.sizes[3];
    const std::int64_t tasks = p_.batch * p_.heads_k * keys_.blocks;
    run_tasks(*executor_, threads_, tasks, [&](std::int64_t task, int slot) {
      const std::int64_t head = task / keys_.blocks;
      const std::int64_t b = head / p_.heads_k;
      const std::int64_t h_k = head % p_.heads_k;
      const Sequence sequence = p_.sequence(b);
      const std::int64_t stored = p_.key_rows(sequence);
      const std::int64_t most = keys_.rows(stored);
      const std::int64_t j0 = task % keys_.blocks * most;
      if (j0 >= stored) return;
      const std::int64_t rows = std::min(most, stored - j0);
      const std::int64_t seen =
          p_.group() == 0 ? 0 : sequence.k_length - j0;  // no query head: nothing is summed
      const std::int64_t keys = std::clamp<std::int64_t>(seen, 0, rows);
      const Result out = result(t, b, h_k, sequence.k_begin + j0, slot);
      for (std::int64_t g = 0; g < p_.group(); ++g) {
        const std::int64_t h = h_k * p_.group() + g;
        const float* from = scores + score_at(p_, b, h, sequence.q_begin) + j0;
        products_.multiply(keys, dim, sequence.q_length, {from, p_.seq_k, true},
                           rows_of.at(b, h, sequence.q_begin), rows_of.ld, g > 0, out.data, out.ld);
      }
      for (std::int64_t r = keys; r < rows; ++r) {  // beyond the length
        std::fill_n(out.data + r * out.ld, dim, 0.0F);
      }
      finish(out, rows);
    });
  }

  /// (B10); delta holds rowsum(P * dP) - dLSE.
  void sink_gradient() const {
    const auto* lse = static_cast<const float*>(p_.lse.data);
    run_tasks(*executor_, threads_, p_.heads_q, [&](std::int64_t h, int /*slot*/) {
      const float sink = tools(h).sink;
      double sum = 0.0;
      for (std::int64_t b = 0; b < p_.batch && sink != kNothing; ++b) {
        const Sequence sequence = p_.sequence(b);
        const float* delta = delta_ + statistics_at({sequence, b, h});
        for (std::int64_t i = 0; i < sequence.q_length; ++i) {
          const float x = sink - lse[offset_of(p_.lse, b, h, sequence.q_begin + i)];
          sum -= static_cast<double>(std::exp(std::min(x, 0.0F))) * delta[i];
        }
      }
      static_cast<float*>(p_.dsinks.data)[h * p_.dsinks.strides[0]] = static_cast<float>(sum);
    });
  }

  const Problem& p_;
  const UnfusedPasses& passes_;
  const int threads_;
  const bool backward_;
  const bool keeps_;  ///< S and P lie in the caller's saved state
  const Cut queries_, keys_;
  const ScoreSteps steps_;

  const Blas* blas_ = nullptr;
  const RowPasses* rows_ = nullptr;
  Products products_;
  Executor* executor_ = nullptr;
  Operand q_, k_, v_, do_;
  // Parts of the saved state and the workspace: parts().
  float *s_ = nullptr, *prob_ = nullptr, *dropped_ = nullptr, *dp_ = nullptr;
  float *m_ = nullptr, *l_ = nullptr, *delta_ = nullptr, *strips_ = nullptr;
  float *q_copy_ = nullptr, *k_copy_ = nullptr, *v_copy_ = nullptr, *do_copy_ = nullptr;
  float* results_ = nullptr;
};

}  // namespace

float softmax_shift(float highest, float sink) {
  const float m = std::max(highest, sink);
  return m == kNothing ? 0.0F : m;
}

CpuForm unfused_form(const Problem& p) {
  return p.seq_q < kLeastTaskRows ? CpuForm::unfused_short : CpuForm::unfused;
}

CpuWork unfused_work(const Problem& p, double bytes_moved, int threads) {
  const auto dims = static_cast<double>(p.head_dim + p.head_dim_v);
  const Cut queries(p.heads_q, threads);
  const std::int64_t tasks = std::min(queries.blocks, ceil_div(p.seq_q, queries.rows(p.seq_q)));
  CpuWork work{.bytes = bytes_moved};
  work.pairs = 1.0;
  for (const std::int64_t size : scores_shape(p)) work.pairs *= static_cast<double>(size);
  work.flops = work.pairs * dims * (p.pass == Pass::backward ? 4.0 : 2.0);
  work.packed = static_cast<double>(p.batch * p.heads_q * tasks * p.seq_k) * dims;
  return work;
}

Preparation unfused_prepare(const KernelRow& row, const Problem& p, const Hardware& machine) {
  std::string reason = textbook_refusal(p);
  if (reason.empty()) reason = Blas::missing_reason();
  if (!reason.empty()) return reason;
  const auto& passes = *static_cast<const UnfusedPasses*>(row.config);
  Cost cost;
  cost.threads = machine.threads;
  cost.memory = Unfused(p, passes, machine.threads).memory();
  const bool backward = p.pass == Pass::backward;
  cost.bytes_moved = problem_bytes(p);
  const double pairs = unfused_work(p, 0.0, machine.threads).pairs;
  for (const MemoryPart& item : cost.memory) {  // written, then read
    if (std::string_view(item.name).ends_with("as float32"))
      cost.bytes_moved += 2.0 * static_cast<double>(item.bytes);
  }
  cost.bytes_moved += 4.0 * pairs * (backward ? passes.walks_backward : passes.walks_forward);
  const CpuWork work = unfused_work(p, cost.bytes_moved, machine.threads);
  cost.ms = cpu_time_ms(cpu_terms(unfused_form(p), p.pass), work, machine);
  return Prepared{std::move(cost), nullptr};
}

void unfused_run(const KernelRow& row, const Problem& problem, const Context& context) {
  const auto& passes = *static_cast<const UnfusedPasses*>(row.config);
  Unfused(problem, passes, context.plan.threads).run(context);
}

}  // namespace tilewise::cpu
