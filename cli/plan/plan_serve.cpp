#include "cli/plan/plan_serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "cli/files/error.h"
#include "cli/plan/pass_plans.h"
#include "cli/plan/plan_report.h"
#include "cli/shell/args.h"
#include "cli/shell/failure.h"
#include "harness/materialize.h"
#include "problem/blocks.h"

namespace tilewise::cli {
namespace {

/// More sequences or pages than any memory holds.
constexpr std::int64_t kMost = std::int64_t{1} << 32;

/// The decoding step of a cell.
class Step {
 public:
  Step(Cell cell, const Served& served, const Machine& machine)
      : cell_(std::move(cell)), served_(served), machine_(machine) {
    Case& c = cell_.problem;
    const bool ragged = std::any_of(c.key_lengths.begin(), c.key_lengths.end(),
                                    [&](std::int64_t length) { return length != c.seq_k; });
    if (c.packed || ragged)
      throw BadInput("--serve: expected --batch and --seq, without --packed and --lengths");
    if (c.page_size == 0) c.page_size = served.page_size;
    c.seq_q = 1;
    c.backward = false;
    c.lse = false;
    cell_.timed = {Timed::forward};
    token_bytes_ = served.layers * c.heads_k * (c.head_dim + c.head_dim_v) * dtype_bytes(c.dtype);
  }

  std::int64_t token_bytes() const { return token_bytes_; }
  std::int64_t page_size() const { return cell_.problem.page_size; }
  std::int64_t cache_bytes(std::int64_t batch, std::int64_t context) const {
    return batch * round_up(context, page_size()) * token_bytes_;
  }
  /// Keys of a sequence that its query sees.
  std::int64_t keys_read(std::int64_t context) const {
    const auto& left = cell_.problem.window.left;
    return left ? std::clamp<std::int64_t>(*left + 1, 0, context) : context;
  }
  /// The plan of one layer.
  Plan plan(std::int64_t batch, std::int64_t context) const {
    const PlannedCase tensors(shape(batch, context), machine_.hardware.device);
    const PassPlans plans = plan_passes(tensors.forward(), nullptr, tensors.spec(),
                                        cell_.choice(Pass::forward), {}, machine_.hardware);
    if (!plans.forward_refusal.empty()) throw Unsupported(plans.forward_refusal);
    return plans.forward;
  }
  /// Weights, the cache of all layers, and what one layer has beside it.
  bool fits(std::int64_t batch, std::int64_t context, std::int64_t limit_bytes) const {
    const Case& c = cell_.problem;
    std::int64_t bytes = served_.weight_bytes + cache_bytes(batch, context);
    if (bytes > limit_bytes) return false;
    bytes += batch * c.heads_q * (c.head_dim + c.head_dim_v) * dtype_bytes(c.dtype);
    return bytes + plan(batch, context).workspace_bytes <= limit_bytes;
  }

 private:
  Case shape(std::int64_t batch, std::int64_t context) const {
    Case c = cell_.problem;
    c.batch = batch;
    c.seq_k = round_up(context, c.page_size);
    c.key_lengths.assign(static_cast<std::size_t>(batch), context);
    return c;
  }

  Cell cell_;
  Served served_;
  const Machine& machine_;
  std::int64_t token_bytes_ = 0;
};

/// The largest n that holds, where those below it hold too; 0: not even 1.
std::int64_t largest(const std::function<bool(std::int64_t)>& holds) {
  std::int64_t good = 0, bad = 1;
  while (bad < kMost && holds(bad)) {
    good = bad;
    bad *= 2;
  }
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (holds(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace

Serving serving_of(const Cell& cell, const Served& served, const Machine& machine,
                   std::int64_t limit_bytes) {
  const Case& c = cell.problem;
  if (c.batch * c.heads_q * c.seq_q * c.seq_k == 0) {
    throw BadInput("--serve: expected sizes of at least 1");
  }
  const Step step(cell, served, machine);
  Serving s;
  s.batch = cell.problem.batch;
  s.context = cell.problem.seq_k;
  s.token_bytes = step.token_bytes();
  s.cache_bytes = step.cache_bytes(s.batch, s.context);
  s.step_bytes = served.weight_bytes + s.batch * step.keys_read(s.context) * s.token_bytes;
  s.tokens_per_s = static_cast<double>(s.batch) * machine.hardware.bandwidth_gbps * 1e9 /
                   static_cast<double>(std::max<std::int64_t>(s.step_bytes, 1));
  const Plan plan = step.plan(s.batch, s.context);
  s.kernel = plan.kernel;
  s.attention_ms = static_cast<double>(served.layers) * plan.predicted_ms;
  const std::int64_t page = step.page_size();
  s.longest_context = page * largest([&](std::int64_t pages) {
                        return step.fits(s.batch, pages * page, limit_bytes);
                      });
  s.largest_batch =
      largest([&](std::int64_t batch) { return step.fits(batch, s.context, limit_bytes); });
  return s;
}

std::string serve(const std::vector<Cell>& cells, const Served& served, const Machine& machine,
                  std::int64_t limit_bytes, Format format) {
  Table table({{"heads"},
               {"kv_heads"},
               {"head_dim"},
               {"dtype"},
               {"batch"},
               {"context"},
               {"cache_kib_a_token"},
               {"cache_gib"},
               {"step_gib"},
               {"tokens_per_s", 0},
               {"attention_ms"},
               {"longest_context"},
               {"largest_batch"},
               {"kernel"}});
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  for (const Cell& cell : cells) {
    const Serving s = serving_of(cell, served, machine, limit_bytes);
    const Case& c = cell.problem;
    table.add({c.heads_q, c.heads_k, c.head_dim, std::string(dtype_name(c.dtype)), s.batch,
               s.context, static_cast<double>(s.token_bytes) / 1024.0,
               static_cast<double>(s.cache_bytes) / kGiB, static_cast<double>(s.step_bytes) / kGiB,
               s.tokens_per_s, s.attention_ms, s.longest_context, s.largest_batch, s.kernel});
  }
  if (format != Format::markdown) return table.text(format);
  std::vector<std::string> constant;
  const Table short_table = table.without_constants({"batch", "context"}, constant);
  return fmt::format(
      "{}{}\n{} ({}); {} layers, weights {}; under {}\ntokens_per_s: upper bound; each step reads "
      "weights and visible keys once at {:.0f} GB/s\nattention_ms: predicted, all "
      "layers\nlongest_context, largest_batch: with the other one unchanged\n",
      constant.empty() ? "" : fmt::format("{}\n\n", fmt::join(constant, ", ")),
      short_table.markdown(), machine.hardware.name, machine.origin, served.layers,
      bytes_text(served.weight_bytes), bytes_text(limit_bytes), machine.hardware.bandwidth_gbps);
}

}  // namespace tilewise::cli
