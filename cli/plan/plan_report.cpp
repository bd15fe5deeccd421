#include "cli/plan/plan_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/shell/args.h"
#include "plan/significant.h"

namespace tilewise::cli {
namespace {

/// Gains below this are no help.
constexpr double kLeastGain = 1.05;

std::string bounds_lines(const Bounds& b, const Hardware& machine) {
  const char* units = machine.device.type == DeviceType::cpu ? "threads" : "multiprocessors";
  std::string busy;
  if (b.filled < 1.0) busy = fmt::format(" with {:.0f} % of the {} busy", 100.0 * b.filled, units);
  return fmt::format(
      "  bounds     at least {} ms: launch {}, memory {}, compute {}\n"
      "  bound by   {}: its bytes at the copy rate {} ms, its products {} ms{}\n"
      "  intensity  {} FLOP per byte; this machine is compute-bound above {}\n",
      significant(b.least_ms(), 3), significant(b.launch_ms, 3), significant(b.memory_ms, 3),
      significant(b.compute_ms, 3), b.verdict(), significant(b.counted_memory_ms, 3),
      significant(b.counted_compute_ms, 3), busy, significant(b.intensity, 3),
      significant(b.ridge, 3));
}

/// The fraction of pairs that is computed, for masked problems that are not packed.
std::string density_line(const Case& c, const Plan& plan) {
  if (c.packed) return {};
  const auto d = static_cast<double>(c.head_dim);
  const auto dv = static_cast<double>(c.head_dim_v);
  const double per_pair = plan.pass == Pass::forward ? 2.0 * (d + dv) : 2.0 * (3.0 * d + 2.0 * dv);
  const double all = per_pair * static_cast<double>(c.batch * c.heads_q) *
                     static_cast<double>(c.seq_q) * static_cast<double>(c.seq_k);
  if (!(plan.flops < all)) return {};
  return fmt::format("  density    {:.3g} % of the pairs\n", 100.0 * plan.flops / all);
}

std::string limit_lines(const std::vector<Largest>& limits) {
  std::string out;
  for (const Largest& limit : limits) {
    out += fmt::format("  {:<10} {} (one more: {})\n", limit.size, limit.value, limit.next_reason);
  }
  return out.empty() ? out : "largest that fit, one at a time\n" + out;
}

std::string help_lines(const std::vector<Help>& helps, bool fits) {
  std::string out;
  if (!fits) {
    for (const Help& help : helps) {
      out += fmt::format("  {} peak: {}\n", bytes_text(help.peak_bytes), help.what);
    }
    return out.empty() ? "no change is predicted to make it fit\n"
                       : "changes that make it fit, predicted\n" + out;
  }
  for (const Help& help : helps) {
    if (help.gain < kLeastGain) break;
    out += fmt::format("  {:.2f} times faster, {} ms: {}\n", help.gain, significant(help.ms, 3),
                       help.what);
  }
  return out.empty() ? "no change is predicted to help by 5 %\n"
                     : "changes that help, predicted\n" + out;
}

void add_limits(std::vector<Value>& line, const Cell& cell, const Hardware& machine,
                std::int64_t limit_bytes) {
  const std::vector<Largest> limits = largest_that_fit(cell, machine, limit_bytes);
  for (std::size_t i = 0; i < 3; ++i)
    line.push_back(i < limits.size() ? Value(limits[i].value) : Value());
  const std::vector<Help> helps = what_helps(cell, machine, limit_bytes);
  // What fits helps a problem that does not, be it faster or not.
  const std::optional<std::int64_t> peak = peak_bytes(cell, machine);
  const bool out_of_memory = peak && *peak > limit_bytes;
  const bool any = !helps.empty() && (out_of_memory || helps.front().gain >= kLeastGain);
  line.push_back(any ? Value(helps.front().what) : Value());
  line.push_back(any ? Value(helps.front().gain) : Value());
}

}  // namespace

Table overview(const std::vector<Planned>& plans, const Hardware& machine, std::int64_t limit_bytes,
               bool limits) {
  std::vector<Column> columns = {
      {"problem"},  {"implementation"}, {"pass"},        {"kernel"},           {"tiles"},
      {"splits"},   {"GFLOP"},          {"GB_moved"},    {"FLOP_per_byte", 1}, {"bound"},
      {"bound_ms"}, {"predicted_ms"},   {"live_MiB", 1}, {"peak_MiB", 1},      {"verdict"}};
  if (limits) {
    columns.insert(columns.end(), {{"largest_length"},
                                   {"largest_batch"},
                                   {"largest_heads"},
                                   {"helps_most"},
                                   {"helps_times", 2}});
  }
  Table table(columns);
  for (const Planned& entry : plans) {
    std::vector<Value> line = {format_case(entry.cell.problem), entry.cell.implementation,
                               pass_name(entry.pass), entry.cell.kernel};
    if (!entry.plan) {
      line.resize(columns.size());
      line[14] = entry.verdict();
      table.add(std::move(line));
      continue;
    }
    const Plan& plan = *entry.plan;
    line[1] = plan.implementation;
    line[3] = plan.kernel;
    line.insert(
        line.end(),
        {plan.block_m > 0 ? Value(fmt::format("{}x{}", plan.block_m, plan.block_n)) : Value(),
         plan.splits, plan.flops * 1e-9, plan.bytes_moved * 1e-9, entry.bounds.intensity,
         entry.bounds.verdict(), entry.bounds.least_ms(), plan.predicted_ms,
         mebibytes(plan.live_bytes()), mebibytes(plan.peak_bytes()), entry.verdict()});
    if (limits) add_limits(line, entry.cell, machine, limit_bytes);
    table.add(std::move(line));
  }
  return table;
}

Table tensor_table(const std::vector<Planned>& plans, bool in_bytes) {
  std::vector<std::string> names;
  for (const Planned& entry : plans) {
    if (!entry.plan) continue;
    for (const MemoryItem& item : entry.plan->memory) {
      if (std::find(names.begin(), names.end(), item.name) == names.end()) {
        names.push_back(item.name);
      }
    }
  }
  std::vector<Column> columns = {{"implementation"}, {"pass"}, {"problem"}};
  for (const std::string& name : names) columns.push_back({name, 2});
  columns.insert(columns.end(), {{"live", 2}, {"peak", 2}, {"verdict"}});
  Table table(columns);
  const auto size = [&](std::int64_t bytes) {
    return in_bytes ? Value(bytes) : Value(mebibytes(bytes));
  };
  for (const Planned& entry : plans) {
    if (!entry.plan) continue;
    std::vector<Value> line = {entry.plan->implementation, pass_name(entry.pass),
                               format_case(entry.cell.problem)};
    for (const std::string& name : names) {
      std::int64_t bytes = 0;
      for (const MemoryItem& item : entry.plan->memory) {
        const bool there = item.role != MemoryItem::Role::saved || entry.plan->keeps_saved;
        if (item.name == name && there) bytes += item.bytes;
      }
      line.push_back(bytes > 0 ? size(bytes) : Value());
    }
    line.push_back(size(entry.plan->live_bytes()));
    line.push_back(size(entry.plan->peak_bytes()));
    line.push_back(entry.verdict());
    table.add(std::move(line));
  }
  return table;
}

std::string cell_report(const Cell& cell, const std::vector<Planned>& plans, const Machine& machine,
                        std::int64_t limit_bytes) {
  std::string out = fmt::format("{} ({})\n{}\n\n", machine.hardware.name, machine.origin,
                                origin_of_times(machine));
  std::int64_t peak_bytes = 0;
  for (const Planned& entry : plans) {
    peak_bytes = std::max(peak_bytes, entry.plan->peak_bytes());
    std::string text = explain(*entry.plan);
    const std::size_t at = text.find("  memory ");
    text.insert(
        at, density_line(cell.problem, *entry.plan) + bounds_lines(entry.bounds, machine.hardware));
    out += text + "\n";
  }
  out += fmt::format("{} of {} allowed: {}\n", bytes_text(peak_bytes), bytes_text(limit_bytes),
                     peak_bytes > limit_bytes ? "out of memory" : "fits");
  out += limit_lines(largest_that_fit(cell, machine.hardware, limit_bytes));
  const bool fits = peak_bytes <= limit_bytes;
  return out + help_lines(what_helps(cell, machine.hardware, limit_bytes), fits);
}

}  // namespace tilewise::cli
