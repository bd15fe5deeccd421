#include "cli/plan/plan_analyze.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <limits>

#include "cli/bench/published.h"
#include "cli/plan/plan_cells.h"
#include "cli/shell/args.h"
#include "cli/shell/failure.h"
#include "plan/accounting.h"

namespace tilewise::cli {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

/// A size of the problem that can be set.
struct Size {
  const char* name;
  void (*set)(Case&, std::int64_t);
  std::int64_t (*get)(const Case&);
};

constexpr Size kLength = {"length", [](Case& c, std::int64_t n) { c.seq_q = c.seq_k = n; },
                          [](const Case& c) { return c.seq_q; }};
constexpr Size kBatch = {"batch", [](Case& c, std::int64_t n) { c.batch = n; },
                         [](const Case& c) { return c.batch; }};
constexpr Size kHeads = {"heads",
                         [](Case& c, std::int64_t n) {
                           const std::int64_t group = c.heads_q / c.heads_k;
                           c.heads_q = n;
                           c.heads_k = std::max<std::int64_t>(1, n / group);
                         },
                         [](const Case& c) { return c.heads_q; }};
constexpr Size kDim = {"head dim", [](Case& c, std::int64_t n) { c.head_dim = c.head_dim_v = n; },
                       [](const Case& c) { return c.head_dim; }};

/// What a cell's passes take together.
struct Amounts {
  double tensors = 0.0;  ///< inputs, outputs, gradients
  double held = 0.0;     ///< saved state and workspace: S and P where they are kept
  double peak = 0.0, flops = 0.0, moved = 0.0, ms = 0.0;
};

Amounts amounts_of(const Cell& cell, const Hardware& machine) {
  Amounts sum;
  for (const Planned& entry : plan_cell(cell, machine, kNoLimit)) {
    if (!entry.plan) throw Unsupported(entry.refusal);
    const Plan& plan = *entry.plan;
    using Role = MemoryItem::Role;
    double tensors = 0.0;
    for (const Role role : {Role::input, Role::output, Role::gradient}) {
      tensors += static_cast<double>(bytes_of(plan.memory, role));
    }
    const auto peak = static_cast<double>(plan.peak_bytes());
    if (peak > sum.peak) {
      sum.peak = peak;
      sum.tensors = tensors;
      sum.held = peak - tensors;
    }
    sum.flops += plan.flops;
    sum.moved += plan.bytes_moved;
    sum.ms += plan.predicted_ms;
  }
  return sum;
}

Cell with(Cell cell, const Size& size, std::int64_t value) {
  size.set(cell.problem, value);
  return cell;
}

/// Each size doubled, the others as they are: what it multiplies.
Table growth_table(const std::vector<Cell>& cells, const Hardware& machine) {
  Table table({{"implementation"},
               {"doubled"},
               {"tensors_MiB"},
               {"held_MiB"},
               {"tensors_times", 2},
               {"held_times", 2},
               {"peak_times", 2},
               {"flops_times", 2},
               {"moved_times", 2},
               {"time_times", 2}});
  for (const Cell& cell : cells) {
    const Amounts base = amounts_of(cell, machine);
    for (const Size& size : {kLength, kBatch, kHeads, kDim}) {
      const Amounts twice = amounts_of(with(cell, size, 2 * size.get(cell.problem)), machine);
      const auto times = [](double after, double before) {
        return before > 0.0 ? Value(after / before) : Value();
      };
      table.add({cell.implementation, size.name, base.tensors / 1048576.0, base.held / 1048576.0,
                 times(twice.tensors, base.tensors), times(twice.held, base.held),
                 times(twice.peak, base.peak), times(twice.flops, base.flops),
                 times(twice.moved, base.moved), times(twice.ms, base.ms)});
    }
  }
  return table;
}

/// Times along one size as multiples of the first, beside what seed 002 claims.
Table sweep_table(const std::vector<Cell>& cells, const Size& size,
                  const std::vector<std::pair<std::int64_t, double>>& claims,
                  const Hardware& machine) {
  Table table({{"implementation"},
               {size.name},
               {"scores_MiB", 2},
               {"bound"},
               {"predicted_ms", 4},
               {"predicted_times", 2},
               {"claimed_times", 0}});
  for (const Cell& cell : cells) {
    double first_ms = 0.0;
    for (const auto& [value, claimed] : claims) {
      const Cell one = with(cell, size, value);
      const Case& c = one.problem;
      const double ms = amounts_of(one, machine).ms;
      if (first_ms == 0.0) first_ms = ms;
      const double scores = 4.0 * static_cast<double>(c.batch * c.heads_q) *
                            static_cast<double>(c.seq_q) * static_cast<double>(c.seq_k);
      table.add({cell.implementation, value, scores / 1048576.0,
                 plan_cell(one, machine, kNoLimit).front().bounds.verdict(), ms, ms / first_ms,
                 claimed});
    }
  }
  return table;
}

/// What one query and all of them touch, as the seed counts: elements, and bytes if no cache helps.
Table access_table(const Case& c) {
  const auto keys = static_cast<double>(c.seq_k), d = static_cast<double>(c.head_dim);
  const auto dv = static_cast<double>(c.head_dim_v);
  const double queries = static_cast<double>(c.batch * c.heads_q) * static_cast<double>(c.seq_q);
  Table table({{"step"}, {"order"}, {"one_query", 0}, {"all_queries", 0}, {"all_MiB", 1}});
  double total = 0.0;
  const auto add = [&](const char* step, const char* order, double elements) {
    total += elements;
    table.add({step, order, elements, elements * queries, 4.0 * elements * queries / 1048576.0});
  };
  add("1: S = Q K^T reads every key", "S d", keys * d);
  add("2-4: softmax passes over the scores: maximum, exp and sum, division", "3 S", 3.0 * keys);
  add("5: O = P V reads every value and probability", "S (d + 1)", keys * (dv + 1.0));
  const double all = total;
  add("total; S^2 d over all queries", "S d", all);
  return table;
}

/// How many times faster flash is than the textbook, beside the claims.
Table gain_table(const Cell& cell, const Hardware& machine) {
  Table table({{"length"}, {"baseline_ms", 4}, {"flash_ms", 4}, {"predicted", 2}, {"claimed", 0}});
  for (const Value& claim : published().at("baseline-scaling").at("claimed_flash_speedup")) {
    Cell baseline = with(cell, kLength, claim.at("seq_len").get<std::int64_t>());
    baseline.timed = {Timed::forward};
    Cell flash = baseline;
    baseline.implementation = "baseline";
    flash.implementation = "flash";
    const double slow = amounts_of(baseline, machine).ms, fast = amounts_of(flash, machine).ms;
    table.add({baseline.problem.seq_q, slow, fast, slow / fast, claim.at("speedup").get<double>()});
  }
  return table;
}

}  // namespace

std::string analyze(const std::vector<Cell>& cells, const Machine& machine, Format format) {
  const Hardware& hw = machine.hardware;
  const Case& c = cells.front().problem;
  if (c.packed || c.page_size > 0 || !c.key_lengths.empty() || c.seq_q != c.seq_k) {
    throw BadInput("--analyze: expected a dense problem with equal numbers of keys and queries");
  }
  if (c.batch * c.heads_q * c.seq_q == 0) {
    throw BadInput("--analyze: expected sizes of at least 1");
  }
  struct Part {
    const char* name;
    std::string title;
    Table table;
  };
  const std::int64_t tile = std::int64_t{64} * 64 * 4;
  const auto matrix = static_cast<std::int64_t>(4) * c.seq_q * c.seq_k;
  const std::vector<Part> parts = {
      {"growth", "Factor when one size doubles (held: saved state and workspace)",
       growth_table(cells, hw)},
      {"length", "Length, claimed t, 4t, 16t, 64t",
       sweep_table(cells, kLength, {{256, 1}, {512, 4}, {1024, 16}, {2048, 64}}, hw)},
      {"batch", "Batch, claimed t, 2t, 4t",
       sweep_table(cells, kBatch, {{1, 1}, {2, 2}, {4, 4}}, hw)},
      {"heads", "Heads, claimed t, 2t", sweep_table(cells, kHeads, {{1, 1}, {2, 2}}, hw)},
      {"accesses",
       fmt::format("Accesses of each textbook step. A 64 x 64 float32 tile has {} bytes = {:.0f} "
                   "KB, the matrix of a head {}",
                   tile, static_cast<double>(tile) / 1024.0, bytes_text(matrix)),
       access_table(c)},
      {"flash_gain", "Speed-up of flash over the textbook, forward",
       gain_table(cells.front(), hw)}};
  if (format == Format::csv) return parts.front().table.csv();
  if (format == Format::json) {
    Value document = {{"machine", hw.name}, {"problem", format_case(c)}};
    for (const Part& part : parts) document[part.name] = part.table.json();
    return document.dump(2) + "\n";
  }
  std::string out = fmt::format("{} on {} ({})\n{}\n", format_case(c), hw.name, machine.origin,
                                origin_of_times(machine));
  for (const Part& part : parts) out += "\n" + part.title + "\n\n" + part.table.markdown();
  return out;
}

}  // namespace tilewise::cli
