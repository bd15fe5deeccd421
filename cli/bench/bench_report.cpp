#include "cli/bench/bench_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "cli/bench/scaling_report.h"
#include "cli/bench/verdict.h"
#include "cli/machine/environment_report.h"
#include "cli/shell/args.h"

namespace tilewise::cli {
namespace {

/// A number of a measurement, or null when there is none.
Value measured(const Measurement& row, double value) {
  return row.ms.count > 0 ? Value(value) : Value();
}

Value memory(const Measurement& row, std::int64_t bytes) { return measured(row, mebibytes(bytes)); }

/// First line of a reason: the others list every kernel.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Forward and backward of one problem by one implementation.
struct Pair {
  const Measurement* forward = nullptr;
  const Measurement* backward = nullptr;

  const Measurement& any() const { return forward != nullptr ? *forward : *backward; }

  /// The number, or what came in its place; null where the pass was not asked for.
  template <class Field>
  Value value(const Measurement* row, const Field& field) const {
    if (row == nullptr) return {};
    if (row->status == Status::oom) return "OOM";
    if (row->status != Status::ok) return std::string(status_name(row->status));
    return field(*row);
  }
  Value live_mb() const {
    const Measurement* row = forward != nullptr ? forward : backward;
    if (row != nullptr && row->status == Status::timeout) return {};
    return value(row, [](auto& one) { return mebibytes(one.live_bytes); });
  }
  Value peak_mb() const {
    const Measurement* row = forward != nullptr ? forward : backward;
    if (row != nullptr && row->status == Status::timeout) return {};
    const std::int64_t other = backward != nullptr ? backward->peak_bytes : 0;
    return value(row, [&](auto& one) { return mebibytes(std::max(one.peak_bytes, other)); });
  }
};

/// Time of all passes of one implementation over the other's; null unless both were measured.
Value time_ratio(const std::map<std::string, Pair>& by_name, const std::string& a,
                 const std::string& b) {
  double sums[2] = {};
  for (int i = 0; i < 2; ++i) {
    const auto at = by_name.find(i == 0 ? a : b);
    if (at == by_name.end()) return {};
    for (const Measurement* row : {at->second.forward, at->second.backward}) {
      if (row != nullptr && row->status != Status::ok) return {};
      if (row != nullptr) sums[i] += row->ms.mean;
    }
  }
  return sums[1] > 0.0 ? Value(sums[0] / sums[1]) : Value();
}

/// Rows of one cell follow each other; fwd+bwd has no column of its own in these tables.
std::vector<Pair> pairs(const std::vector<Measurement>& rows) {
  std::vector<Pair> out;
  std::string last;
  for (const Measurement& row : rows) {
    if (row.timed == Timed::both) continue;
    const std::string name = row.implementation + " " + format_case(row.problem);
    const bool forward = row.timed == Timed::forward;
    const bool taken = !out.empty() && (forward ? out.back().forward : out.back().backward);
    if (name != last || taken) out.emplace_back();
    (forward ? out.back().forward : out.back().backward) = &row;
    last = name;
  }
  return out;
}

std::string markdown_cells(const std::vector<Measurement>& rows) {
  const std::vector<std::string> keep = {"implementation", "pass",   "ms_mean", "ms_std",
                                         "ms_median",      "tflops", "gbps",    "live_mib",
                                         "peak_mib",       "status"};
  std::vector<std::string> constant;
  Table table = cells_table(rows);
  table.drop("reason");  // the notes below the table say it once
  table.drop_copy("seq_k", "seq_q");
  table.drop_copy("kv_heads", "heads");
  table.drop_copy("head_dim_v", "head_dim");
  std::string out = table.without_constants(keep, constant).markdown();
  if (!constant.empty()) out = fmt::format("{}\n\n{}", fmt::join(constant, ", "), out);
  return out;
}

/// What did not run as asked for, and why: once for each reason.
std::string notes(const std::vector<Measurement>& rows) {
  std::vector<std::string> lines;
  for (const Measurement& row : rows) {
    if (row.reason.empty()) continue;
    const bool ok = row.status == Status::ok;
    std::string line = ok ? row.reason : fmt::format("{}: {}", status_name(row.status), row.reason);
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
  }
  std::string out;
  for (const std::string& line : lines) out += "- " + line + "\n";
  return out.empty() ? out : "\n" + out;
}

}  // namespace

Table cells_table(const std::vector<Measurement>& rows) {
  Table table({{"implementation"}, {"kernel"},    {"device"},   {"dtype"},     {"batch"},
               {"heads"},          {"kv_heads"},  {"seq_q"},    {"seq_k"},     {"head_dim"},
               {"head_dim_v"},     {"causal"},    {"mask"},     {"precision"}, {"deterministic"},
               {"layout"},         {"threads"},   {"protocol"}, {"pass"},      {"ms_mean"},
               {"ms_std"},         {"ms_median"}, {"tflops"},   {"gbps", 1},   {"live_mib", 1},
               {"peak_mib", 1},    {"status"},    {"reason"}});
  for (const Measurement& row : rows) {
    const Case& c = row.problem;
    const double rate = row.ms.median > 0.0 ? 1e-9 / row.ms.median : 0.0;
    table.add({row.implementation,
               row.kernel,
               device_name(row.device),
               dtype_name(c.dtype),
               c.packed ? static_cast<std::int64_t>(c.packed->q_lengths.size()) : c.batch,
               c.heads_q,
               c.heads_k,
               c.seq_q,
               c.seq_k,
               c.head_dim,
               c.head_dim_v,
               c.causal != Causal::none,
               mask_field(c),
               c.precision == Precision::tf32      ? "tf32"
               : c.precision == Precision::refined ? "refined"
                                                   : "exact",
               c.deterministic,
               layout_name(c.layout),
               row.threads,
               protocol_name(row.protocol),
               timed_name(row.timed),
               measured(row, row.ms.mean),
               measured(row, row.ms.stddev),
               measured(row, row.ms.median),
               measured(row, row.flops * rate),
               measured(row, row.bytes_moved * rate * 1e3),
               memory(row, row.live_bytes),
               memory(row, row.peak_bytes),
               status_name(row.status),
               first_line(row.reason)});
  }
  return table;
}

Table seed_table(const std::vector<Measurement>& rows) {
  const bool several = std::any_of(rows.begin(), rows.end(), [&](const Measurement& row) {
    return row.implementation != rows.front().implementation;
  });
  std::vector<Column> columns = {{"seq_len"},        {"d_model"},          {"forward_ms_mean"},
                                 {"forward_ms_std"}, {"backward_ms_mean"}, {"backward_ms_std"},
                                 {"live_MB", 1},     {"peak_MB", 1},       {"batch_size"}};
  if (several) columns.insert(columns.begin(), {"implementation"});
  Table table(columns);
  for (const Pair& pair : pairs(rows)) {
    const Measurement& any = pair.any();
    std::vector<Value> cells = {any.problem.seq_q,
                                any.problem.head_dim,
                                pair.value(pair.forward, [](auto& row) { return row.ms.mean; }),
                                pair.value(pair.forward, [](auto& row) { return row.ms.stddev; }),
                                pair.value(pair.backward, [](auto& row) { return row.ms.mean; }),
                                pair.value(pair.backward, [](auto& row) { return row.ms.stddev; }),
                                pair.live_mb(),
                                pair.peak_mb(),
                                any.problem.batch};
    if (several) cells.insert(cells.begin(), any.implementation);
    table.add(std::move(cells));
  }
  return table;
}

Table compare_table(const std::vector<Measurement>& rows) {
  std::vector<std::string> names;
  std::map<std::pair<std::int64_t, std::int64_t>, std::map<std::string, Pair>> lines;
  for (const Pair& pair : pairs(rows)) {
    const Measurement& any = pair.any();
    if (std::find(names.begin(), names.end(), any.implementation) == names.end()) {
      names.push_back(any.implementation);
    }
    lines[{any.problem.head_dim, any.problem.seq_q}][any.implementation] = pair;
  }
  std::vector<Column> columns = {{"seq_len"}, {"d_model"}};
  for (const std::string& name : names) {
    columns.insert(columns.end(),
                   {{name + "_fwd_ms", 2}, {name + "_bwd_ms", 2}, {name + "_live_MB", 1}});
  }
  const bool two = names.size() == 2;
  if (two) columns.push_back({fmt::format("time_{}/{}", names[0], names[1]), 2});
  Table table(columns);
  for (const auto& [sizes, by_name] : lines) {
    std::vector<Value> cells = {sizes.second, sizes.first};
    for (const std::string& name : names) {
      const auto at = by_name.find(name);
      const Pair pair = at == by_name.end() ? Pair{} : at->second;
      cells.push_back(pair.value(pair.forward, [](auto& row) { return row.ms.mean; }));
      cells.push_back(pair.value(pair.backward, [](auto& row) { return row.ms.mean; }));
      cells.push_back(pair.live_mb());
    }
    if (two) cells.push_back(time_ratio(by_name, names[0], names[1]));
    table.add(std::move(cells));
  }
  return table;
}

std::string bench_report(const std::vector<Measurement>& rows, View view, Format format,
                         const Environment& environment) {
  if (format == Format::json) {
    const Value document = {{"schema_version", kSchemaVersion},
                            {"environment", environment_json(environment)},
                            {"rows", cells_table(rows).json()}};
    return document.dump(2) + "\n";
  }
  if (format == Format::csv) {
    return (view == View::seed      ? seed_table(rows)
            : view == View::compare ? compare_table(rows)
                                    : cells_table(rows))
        .csv();
  }
  std::string out;
  if (view == View::cells) out = markdown_cells(rows);
  if (view == View::seed) out = seed_table(rows).markdown();
  if (view == View::compare) out = compare_table(rows).markdown() + verdicts(rows);
  if (view == View::scaling) out = scaling_markdown(rows);
  return fmt::format("{}{}\n{}\n", out, notes(rows), environment_line(environment));
}

}  // namespace tilewise::cli
