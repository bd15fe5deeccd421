#include "cli/bench/scaling_report.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "cli/bench/published.h"
#include "cli/shell/args.h"
#include "cli/shell/table.h"

namespace tilewise::cli {
namespace {

/// The seed's base: batch 1, one head, dim 64, and for batch, heads and dim a length of 512.
constexpr std::int64_t kBaseDim = 64;
constexpr std::int64_t kBaseSeq = 512;

double scores_mib(const Case& c) {
  const auto rows = static_cast<double>(c.batch * c.heads_q) * static_cast<double>(c.seq_q);
  return rows * static_cast<double>(c.seq_k) * 4.0 / 1048576.0;
}

struct Sizes {
  std::int64_t batch = 1, heads = 1, seq = kBaseSeq, dim = kBaseDim;
};

const Measurement* find(const std::vector<Measurement>& rows, const std::string& implementation,
                        const Sizes& sizes) {
  for (const Measurement& row : rows) {
    const Case& c = row.problem;
    if (row.implementation == implementation && row.timed == Timed::forward && row.ms.count > 0 &&
        c.batch == sizes.batch && c.heads_q == sizes.heads && c.seq_q == sizes.seq &&
        c.head_dim == sizes.dim) {
      return &row;
    }
  }
  return nullptr;
}

/// One sweep: the rows that differ from the base in one size only.
std::string sweep(const std::vector<Measurement>& rows, const char* name,
                  const std::function<std::int64_t&(Sizes&)>& size,
                  const std::vector<std::int64_t>& values, std::int64_t base,
                  const std::function<Value(std::int64_t)>& claim, const char* growth) {
  Table table(
      {{name}, {"scores_MiB", 2}, {"ms_median"}, {"ms_std"}, {"measured", 2}, {"claimed", 2}});
  Sizes base_sizes;
  size(base_sizes) = base;
  const Measurement* first = find(rows, "baseline", base_sizes);
  if (first == nullptr) return "";
  std::vector<double> x;
  std::vector<double> y;
  for (const std::int64_t value : values) {
    Sizes sizes;
    size(sizes) = value;
    const Measurement* row = find(rows, "baseline", sizes);
    if (row == nullptr) continue;
    x.push_back(static_cast<double>(value));
    y.push_back(row->ms.median);
    table.add({value, scores_mib(row->problem), row->ms.median, row->ms.stddev,
               row->ms.median / first->ms.median, claim(value)});
  }
  if (x.size() < 2) return "";
  if (claim(base).is_null()) table.drop("claimed");
  return fmt::format("{}\nmeasured: time ~ {}^{:.2f}, {}; times relative to {} = {}\n\n",
                     table.markdown(), name, log_slope(x, y), growth, name, base);
}

/// The claim of the first of `rows` that has these fields.
Value claimed_time(const Value& rows, const Value& fields) {
  for (const Value& row : rows) {
    bool matches = true;
    for (const auto& [key, value] : fields.items()) matches = matches && row.at(key) == value;
    if (matches) return row.at("claimed_time").get<double>();
  }
  return {};
}

std::string flash_gain(const std::vector<Measurement>& rows, const Value& claims) {
  Table table({{"seq_len"}, {"baseline_ms"}, {"flash_ms"}, {"measured", 2}, {"claimed", 1}});
  for (const Value& claim : claims) {
    Sizes sizes;
    sizes.seq = claim.at("seq_len").get<std::int64_t>();
    const Measurement* baseline = find(rows, "baseline", sizes);
    const Measurement* flash = find(rows, "flash", sizes);
    if (baseline == nullptr || flash == nullptr) continue;
    table.add({sizes.seq, baseline->ms.median, flash->ms.median,
               baseline->ms.median / flash->ms.median, claim.at("speedup").get<double>()});
  }
  return table.empty() ? "" : "Speed-up of flash over the baseline\n\n" + table.markdown();
}

}  // namespace

double log_slope(const std::vector<double>& x, const std::vector<double>& y) {
  double sum_x = 0.0, sum_y = 0.0, sum_xx = 0.0, sum_xy = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double log_x = std::log(x[i]);
    const double log_y = std::log(y[i]);
    sum_x += log_x;
    sum_y += log_y;
    sum_xx += log_x * log_x;
    sum_xy += log_x * log_y;
  }
  const auto n = static_cast<double>(x.size());
  const double spread = n * sum_xx - sum_x * sum_x;
  return spread > 0.0 ? (n * sum_xy - sum_x * sum_y) / spread : 0.0;
}

std::string scaling_markdown(const std::vector<Measurement>& rows) {
  const Value& claims = published().at("baseline-scaling");
  const Value& seq_claims = claims.at("rows");
  const Value& count_claims = claims.at("claimed_batch_heads");
  const auto none = [](std::int64_t) { return Value(); };
  std::string out = "Baseline: a scores buffer of batch x heads x seq x seq float32\n\n";
  out += sweep(
      rows, "seq_len", [](Sizes& s) -> std::int64_t& { return s.seq; },
      {128, 256, 512, 1024, 2048, 4096}, 256,
      [&](std::int64_t n) {
        return claimed_time(seq_claims, {{"seq_len", n}});
      },
      "claimed seq_len^2");
  out += sweep(
      rows, "batch", [](Sizes& s) -> std::int64_t& { return s.batch; }, {1, 2, 4, 8}, 1,
      [&](std::int64_t n) {
        return claimed_time(count_claims, {{"batch", n}, {"heads", 1}});
      },
      "claimed linear");
  out += sweep(
      rows, "heads", [](Sizes& s) -> std::int64_t& { return s.heads; }, {1, 2, 4, 8}, 1,
      [&](std::int64_t n) {
        return claimed_time(count_claims, {{"batch", 1}, {"heads", n}});
      },
      "claimed linear");
  out += sweep(
      rows, "head_dim", [](Sizes& s) -> std::int64_t& { return s.dim; }, {32, 64, 128}, kBaseDim,
      none, "claimed: memory of the scores is unchanged, only the arithmetic grows");
  return out + flash_gain(rows, claims.at("claimed_flash_speedup"));
}

}  // namespace tilewise::cli
