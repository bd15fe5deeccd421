#include "cli/plan/plan_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "cli/plan/pass_plans.h"
#include "cli/shell/args.h"
#include "harness/materialize.h"

namespace tilewise::cli {
namespace {

/// Sizes beyond this are not looked at: no memory holds them.
constexpr std::int64_t kMostSize = std::int64_t{1} << 36;

/// Why the cell cannot be had with `limit_bytes`; empty when it can.
std::string obstacle(const Cell& cell, const Hardware& machine, std::int64_t limit_bytes) {
  PlannedCase tensors(cell.problem, machine.device);
  const bool backward = cell.has(Timed::backward) || cell.has(Timed::both);
  const PassPlans plans =
      plan_passes(tensors.forward(), backward ? &tensors.backward() : nullptr, tensors.spec(),
                  cell.choice(Pass::forward), cell.choice(Pass::backward), machine);
  for (const std::string& refusal : {plans.forward_refusal, plans.backward_refusal}) {
    if (refusal.empty()) continue;
    const std::size_t second = refusal.find('\n');
    return second == std::string::npos
               ? refusal
               : refusal.substr(second + 3, refusal.find('\n', second + 1) - second - 3);
  }
  const std::int64_t peak = std::max(plans.forward.peak_bytes(), plans.backward.peak_bytes());
  if (peak <= limit_bytes) return "";
  return fmt::format("{} more than the {} allowed", bytes_text(peak - limit_bytes),
                     bytes_text(limit_bytes));
}

using SetSize = std::function<void(Case&, std::int64_t)>;

Largest bisect(const char* size, const Cell& cell, const Hardware& machine,
               std::int64_t limit_bytes, const SetSize& set) {
  const auto reason = [&](std::int64_t n) {
    Cell other = cell;
    set(other.problem, n);
    return obstacle(other, machine, limit_bytes);
  };
  std::int64_t fits = 0, fails = 1;
  std::string why = reason(1);
  while (why.empty() && fails < kMostSize) {
    fits = fails;
    fails *= 2;
    why = reason(fails);
  }
  while (fails - fits > 1) {
    const std::int64_t middle = fits + (fails - fits) / 2;
    std::string found = reason(middle);
    if (found.empty()) {
      fits = middle;
    } else {
      fails = middle;
      why = std::move(found);
    }
  }
  return {size, fits, why};
}

/// Adds the cell's time with a change, if the change can be had.
void consider(std::vector<Help>& helps, const std::string& what, const Cell& changed,
              const Hardware& machine, std::int64_t limit_bytes, double now_ms, double work) {
  const std::optional<double> ms = predicted_ms(changed, machine);
  const std::optional<std::int64_t> peak = peak_bytes(changed, machine);
  if (!ms || !peak || *peak > limit_bytes) return;
  helps.push_back({what, *ms / work, now_ms * work / *ms, *peak});
}

}  // namespace

std::vector<Largest> largest_that_fit(const Cell& cell, const Hardware& machine,
                                      std::int64_t limit_bytes) {
  const Case& c = cell.problem;
  if (c.packed || c.page_size > 0 || !c.key_lengths.empty() || c.blocks) return {};
  // What holds nothing fits at any size.
  if (c.batch * c.heads_q * c.seq_q == 0) return {};
  std::vector<Largest> out;
  const bool same = c.seq_q == c.seq_k;
  const std::int64_t seq_q = c.seq_q;
  out.push_back(bisect(same ? "length" : "key length", cell, machine, limit_bytes,
                       [same, seq_q](Case& other, std::int64_t n) {
                         other.seq_k = n;
                         other.seq_q = same ? n : seq_q;
                       }));
  out.push_back(bisect("batch", cell, machine, limit_bytes,
                       [](Case& other, std::int64_t n) { other.batch = n; }));
  const std::int64_t group =
      std::max<std::int64_t>(1, c.heads_q / std::max<std::int64_t>(1, c.heads_k));
  out.push_back(bisect(group > 1 ? "key heads" : "heads", cell, machine, limit_bytes,
                       [group](Case& other, std::int64_t n) {
                         other.heads_k = n;
                         other.heads_q = n * group;
                       }));
  return out;
}

std::vector<Help> what_helps(const Cell& cell, const Hardware& machine, std::int64_t limit_bytes) {
  const std::optional<double> now = predicted_ms(cell, machine);
  const double now_ms = now.value_or(0.0);
  std::vector<Help> helps;
  const auto changed = [&](const std::string& what, const auto& change, double work = 1.0) {
    Cell other = cell;
    change(other);
    consider(helps, what, other, machine, limit_bytes, now_ms, work);
  };
  if (!cell.kernel.empty() || (!cell.implementation.empty() && cell.implementation != "flash")) {
    changed("flash, with the planner's choice", [](Cell& c) { c.kernel = c.implementation = ""; });
  }
  const Case& problem = cell.problem;
  if (problem.dtype == DType::float32) {
    changed("bf16 tensors", [](Cell& c) { c.problem.dtype = DType::bfloat16; });
    if (problem.precision != Precision::tf32) {
      changed("tf32 products", [](Cell& c) { c.problem.precision = Precision::tf32; });
    }
  }
  if (problem.deterministic && cell.has(Timed::backward)) {
    changed("a backward without deterministic", [](Cell& c) { c.problem.deterministic = false; });
  }
  const std::optional<std::int64_t> peak = peak_bytes(cell, machine);
  if (peak && *peak > limit_bytes) {
    // Out of memory: halves of the batch and of the heads at a time, the most that fits.
    std::int64_t batch = problem.batch, heads = problem.heads_q;
    const std::size_t found = helps.size();
    for (batch /= 2; batch >= 1 && !problem.packed && helps.size() == found; batch /= 2) {
      changed(fmt::format("batches of {}", batch), [batch](Cell& c) { c.problem.batch = batch; });
    }
    const bool grouped = problem.heads_q != problem.heads_k;
    const std::size_t before = helps.size();
    for (heads /= 2; heads >= 1 && !grouped && helps.size() == before; heads /= 2) {
      changed(fmt::format("{} heads per call", heads),
              [heads](Cell& c) { c.problem.heads_q = c.problem.heads_k = heads; });
    }
    std::stable_sort(helps.begin(), helps.end(),
                     [](const Help& a, const Help& b) { return a.peak_bytes < b.peak_bytes; });
    return helps;
  }
  if (!problem.packed && problem.key_lengths.empty() && problem.batch > 0) {
    for (const std::int64_t times : {2, 4, 8}) {
      changed(
          fmt::format("a batch of {} (time per {})", problem.batch * times, problem.batch),
          [times](Cell& c) { c.problem.batch *= times; }, static_cast<double>(times));
    }
  }
  std::stable_sort(helps.begin(), helps.end(),
                   [](const Help& a, const Help& b) { return a.gain > b.gain; });
  return helps;
}

}  // namespace tilewise::cli
