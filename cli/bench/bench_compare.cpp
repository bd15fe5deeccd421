#include "cli/bench/bench_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <vector>

#include "cli/shell/failure.h"

namespace tilewise::cli {
namespace {

/// Medians that differ by less than so many spreads of the runs may be chance.
constexpr double kSpreads = 2.0;

/// Fields that make two rows the same measurement, in the order in which the table shows them.
constexpr const char* kKey[] = {
    "implementation", "pass",      "dtype",         "batch",      "heads",   "kv_heads",
    "seq_q",          "seq_k",     "head_dim",      "head_dim_v", "causal",  "mask",
    "device",         "precision", "deterministic", "layout",     "threads", "protocol"};

struct Rows {
  std::string machine;
  std::map<std::string, Value> by_key;
  std::vector<std::string> order;
};

std::string text_of(const Value& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// "AMD EPYC, NVIDIA H100 80GB HBM3": what times depend on.
std::string machine_text(const Value& environment) {
  std::string name = environment.value("cpu", "");
  for (const Value& gpu : environment.value("gpus", Value::array())) {
    name += ", " + (gpu.is_object() ? gpu.value("name", "") : text_of(gpu));
  }
  return name;
}

Rows read_rows(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw BadInput(fmt::format("--compare '{}': cannot be read", path));
  const Value document = Value::parse(file, nullptr, false);
  if (document.is_discarded() || !document.is_object() || !document.contains("rows") ||
      !document.at("rows").is_array()) {
    throw BadInput(fmt::format("--compare '{}': expected a result file of `bench`", path));
  }
  Rows rows;
  rows.machine = machine_text(document.value("environment", Value::object()));
  for (const Value& row : document.at("rows")) {
    if (!row.is_object() || !row.contains("status") || !row.contains("ms_median")) {
      throw BadInput(fmt::format("--compare '{}': a row has no status or median", path));
    }
    std::string key;
    for (const char* field : kKey) key.append(text_of(row.value(field, Value()))).append("|");
    // Several kernels of one implementation on one problem tell themselves apart by name.
    if (rows.by_key.contains(key)) key += text_of(row.value("kernel", Value()));
    if (rows.by_key.emplace(key, row).second) rows.order.push_back(key);
  }
  return rows;
}

double number(const Value& row, const char* field) {
  return row.contains(field) && row.at(field).is_number() ? row.at(field).get<double>() : 0.0;
}

/// "faster", "slower", "same" or "within noise".
const char* judge(const Value& before, const Value& after, double bound) {
  const double old_ms = number(before, "ms_median"), new_ms = number(after, "ms_median");
  const double ratio = new_ms / old_ms;
  if (ratio <= bound && ratio >= 1.0 / bound) return "same";
  const double spread = std::hypot(number(before, "ms_std"), number(after, "ms_std"));
  if (std::abs(new_ms - old_ms) <= kSpreads * spread) return "within noise";
  return ratio > 1.0 ? "slower" : "faster";
}

}  // namespace

Comparison compare_results(const std::string& old_path, const std::string& new_path, double bound) {
  const Rows before = read_rows(old_path), after = read_rows(new_path);
  std::vector<Column> columns;
  for (const char* field : kKey) columns.push_back({field});
  columns.insert(columns.end(), {{"old_ms"}, {"new_ms"}, {"ratio"}, {"peak_ratio"}, {"verdict"}});
  Comparison out{Table(columns)};
  for (const std::string& key : before.order) {
    const auto found = after.by_key.find(key);
    if (found == after.by_key.end()) {
      ++out.only_one;
      continue;
    }
    const Value &a = before.by_key.at(key), &b = found->second;
    std::vector<Value> line;
    for (const char* field : kKey) line.push_back(a.value(field, Value()));
    const std::string old_status = text_of(a.at("status")), new_status = text_of(b.at("status"));
    if (old_status != "ok" || new_status != "ok") {
      const bool same = old_status == new_status;
      if (!same) ++(new_status == "ok" ? out.faster : out.slower);
      line.insert(line.end(),
                  {a.at("ms_median"), b.at("ms_median"), Value(), Value(),
                   same ? old_status : fmt::format("{} -> {}", old_status, new_status)});
      out.table.add(std::move(line));
      continue;
    }
    std::string verdict = judge(a, b, bound);
    const double old_peak = number(a, "peak_mib"), new_peak = number(b, "peak_mib");
    const bool larger = old_peak > 0.0 && new_peak > bound * old_peak;
    if (larger) verdict += ", more memory";
    out.faster += verdict == "faster" ? 1 : 0;
    out.slower += larger || verdict == "slower" ? 1 : 0;
    line.insert(line.end(), {a.at("ms_median"), b.at("ms_median"),
                             number(b, "ms_median") / number(a, "ms_median"),
                             old_peak > 0.0 ? Value(new_peak / old_peak) : Value(), verdict});
    out.table.add(std::move(line));
  }
  for (const std::string& key : after.order) out.only_one += before.by_key.contains(key) ? 0 : 1;
  if (out.table.empty()) {
    throw BadInput(fmt::format("--compare: {} and {} share no measurement", old_path, new_path));
  }
  if (before.machine != after.machine) {
    out.caution = fmt::format("the machines differ: {} and {}", before.machine, after.machine);
  }
  return out;
}

std::string comparison_text(const Comparison& comparison, Format format) {
  if (format != Format::markdown) return comparison.table.text(format);
  Table table = comparison.table;
  table.drop_copy("seq_k", "seq_q");
  table.drop_copy("kv_heads", "heads");
  table.drop_copy("head_dim_v", "head_dim");
  std::vector<std::string> constant;
  const std::vector<std::string> keep = {"implementation", "pass",  "old_ms",
                                         "new_ms",         "ratio", "verdict"};
  std::string out = table.without_constants(keep, constant).markdown();
  for (const std::string& same : constant) out += (&same == &constant.front() ? "\n" : ", ") + same;
  out += fmt::format("\n\n{} slower, {} faster, {} in one file only\n", comparison.slower,
                     comparison.faster, comparison.only_one);
  if (!comparison.caution.empty()) out += "caution: " + comparison.caution + "\n";
  return out;
}

}  // namespace tilewise::cli
