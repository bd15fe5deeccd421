#include "cli/bench_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/args.h"
#include "cli/environment_report.h"
#include "cli/scaling_report.h"

namespace tilewise::cli {
namespace {

/// A number of a measurement, or null when there is none.
Value measured(const Measurement& row, double value) {
  return row.ms.count > 0 ? Value(value) : Value();
}

Value memory(const Measurement& row, std::int64_t bytes) {
  return measured(row, mebibytes(bytes));
}

/// First line of a reason: the others list every kernel.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

bool same_problem(const Measurement& a, const Measurement& b) {
  return format_case(a.problem) == format_case(b.problem) && a.implementation == b.implementation;
}

/// A cell of the seeds' table: the number, or what came in its place.
Value seed_value(const Measurement* row, double value) {
  if (row == nullptr) return {};
  if (row->status == Status::ok) return value;
  return row->status == Status::oom ? "OOM" : std::string(status_name(row->status));
}

std::string markdown_cells(const std::vector<Measurement>& rows) {
  const std::vector<std::string> keep = {"implementation", "pass", "ms_median", "status"};
  std::vector<std::string> constant;
  std::string out = cells_table(rows).without_constants(keep, constant).markdown();
  if (!constant.empty()) out = fmt::format("{}\n\n{}", fmt::join(constant, ", "), out);
  return out;
}

/// What did not run, and why: once for each reason.
std::string notes(const std::vector<Measurement>& rows) {
  std::vector<std::string> lines;
  for (const Measurement& row : rows) {
    if (row.reason.empty() || row.status == Status::ok) continue;
    std::string line = fmt::format("{}: {}", status_name(row.status), row.reason);
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
  }
  std::string out;
  for (const std::string& line : lines) out += "- " + line + "\n";
  return out.empty() ? out : "\n" + out;
}

}  // namespace

Table cells_table(const std::vector<Measurement>& rows) {
  Table table({{"implementation"}, {"kernel"},   {"device"},     {"dtype"},
               {"batch"},          {"heads"},    {"kv_heads"},   {"seq_q"},
               {"seq_k"},          {"head_dim"}, {"head_dim_v"}, {"causal"},
               {"mask"},           {"precision"}, {"deterministic"}, {"layout"},
               {"threads"},        {"protocol"}, {"pass"},       {"ms_mean"},
               {"ms_std"},         {"ms_median"}, {"tflops"},     {"gbps", 1},
               {"live_mib", 1},    {"peak_mib", 1}, {"status"},   {"reason"}});
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
               mask_name(c),
               c.precision == Precision::tf32 ? "tf32" : "exact",
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
  std::vector<Column> columns = {{"seq_len"},
                                 {"d_model"},
                                 {"forward_ms_mean"},
                                 {"forward_ms_std"},
                                 {"backward_ms_mean"},
                                 {"backward_ms_std"},
                                 {"live_MB", 1},
                                 {"peak_MB", 1},
                                 {"batch_size"}};
  if (several) columns.insert(columns.begin(), {"implementation"});
  Table table(columns);
  for (std::size_t i = 0; i < rows.size();) {
    const Measurement& row = rows[i];
    const Measurement* forward = nullptr;
    const Measurement* backward = nullptr;
    std::int64_t peak_bytes = 0;
    for (; i < rows.size() && same_problem(row, rows[i]); ++i) {
      if (rows[i].timed == Timed::forward) forward = &rows[i];
      if (rows[i].timed == Timed::backward) backward = &rows[i];
      peak_bytes = std::max(peak_bytes, rows[i].peak_bytes);
    }
    const Measurement* any = forward != nullptr ? forward : backward != nullptr ? backward : &row;
    std::vector<Value> cells = {row.problem.seq_q,
                                row.problem.head_dim,
                                seed_value(forward, forward ? forward->ms.mean : 0.0),
                                seed_value(forward, forward ? forward->ms.stddev : 0.0),
                                seed_value(backward, backward ? backward->ms.mean : 0.0),
                                seed_value(backward, backward ? backward->ms.stddev : 0.0),
                                seed_value(any, mebibytes(any->live_bytes)),
                                seed_value(any, mebibytes(peak_bytes)),
                                row.problem.batch};
    if (several) cells.insert(cells.begin(), row.implementation);
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
    return (view == View::seed ? seed_table(rows) : cells_table(rows)).csv();
  }
  std::string out;
  if (view == View::cells) out = markdown_cells(rows);
  if (view == View::seed) out = seed_table(rows).markdown();
  if (view == View::scaling) out = scaling_markdown(rows);
  return fmt::format("{}{}\n{}\n", out, notes(rows), environment_line(environment));
}

}  // namespace tilewise::cli
