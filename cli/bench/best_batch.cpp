#include "cli/bench/best_batch.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/plan/plan_limits.h"
#include "cli/shell/args.h"
#include "tilewise/error.h"

namespace tilewise::cli {
namespace {

/// Throughputs closer than this are the same: the smaller batch is preferred.
constexpr double kAsGood = 0.98;
/// Doublings in a row that gain nothing end the search: on a busy machine two may well lose.
constexpr int kPatience = 4;

/// Median of all passes and the peak; none when one of them could not be measured.
std::optional<BatchCurve::Point> measure_one(Cell cell, std::int64_t batch, CellRunner& runner,
                                             std::string& reason) {
  cell.problem.batch = batch;
  BatchCurve::Point point{batch, 0.0, 0.0, 0};
  for (const Measurement& row : runner.run(cell)) {
    if (row.status != Status::ok) {
      reason = row.reason;
      return std::nullopt;
    }
    point.ms += row.ms.median;
    point.std_ms += row.ms.stddev;
    point.peak_bytes = std::max(point.peak_bytes, row.peak_bytes);
  }
  return point;
}

}  // namespace

BatchCurve measure_batches(const Cell& cell, CellRunner& runner, const Hardware& machine,
                           std::int64_t limit_bytes) {
  BatchCurve curve{cell, 0, "", {}, 0};
  for (const Largest& limit : largest_that_fit(cell, machine, limit_bytes)) {
    if (limit.size != "batch") continue;
    curve.largest = limit.value;
    curve.next_reason = limit.next_reason;
  }
  if (curve.largest > 0) {
    std::string ignored;
    measure_one(cell, 1, runner, ignored);  // what a process pays once: pages, clocks, compilation
  }
  int idle = 0;
  double best = 0.0;
  std::string reason = curve.next_reason;
  for (std::int64_t batch = 1; batch <= curve.largest && idle < kPatience;) {
    const std::optional<BatchCurve::Point> point = measure_one(cell, batch, runner, reason);
    if (!point) break;
    curve.points.push_back(*point);
    const double could_be = point->per_second() * (1.0 + point->std_ms / point->ms);
    idle = could_be * kAsGood > best ? 0 : idle + 1;
    best = std::max(best, point->per_second());
    if (batch == curve.largest) break;
    batch = std::min(2 * batch, curve.largest);
  }
  if (curve.points.empty()) {
    throw Unsupported(format_case(cell.problem) + ": no batch runs: " + reason);
  }
  for (std::size_t i = curve.points.size(); i-- > 0;) {
    if (curve.points[i].per_second() >= kAsGood * best) curve.best = i;
  }
  return curve;
}

std::string batch_report(const std::vector<BatchCurve>& curves, Format format) {
  Table table({{"implementation"},
               {"problem"},
               {"batch"},
               {"ms_median"},
               {"ms_std"},
               {"per_second", 1},
               {"peak_MiB", 1},
               {"best"}});
  std::string words;
  for (const BatchCurve& curve : curves) {
    const std::string& name =
        curve.cell.kernel.empty() ? curve.cell.implementation : curve.cell.kernel;
    const std::string who = name.empty() ? "flash" : name;
    Case one = curve.cell.problem;
    one.batch = 1;
    for (std::size_t i = 0; i < curve.points.size(); ++i) {
      const BatchCurve::Point& p = curve.points[i];
      table.add({who, format_case(one), p.batch, p.ms, p.std_ms, p.per_second(),
                 mebibytes(p.peak_bytes), i == curve.best});
    }
    const BatchCurve::Point& best = curve.points[curve.best];
    words += fmt::format(
        "- {}, {}: best batch {}, {:.1f} per second ({:.2f} times a batch of {}); {} fit, one "
        "more: {}\n",
        who, format_case(one), best.batch, best.per_second(),
        best.per_second() / curve.points.front().per_second(), curve.points.front().batch,
        curve.largest, curve.next_reason);
  }
  if (format != Format::markdown) return table.text(format);
  return table.markdown() + "\n" + words;
}

}  // namespace tilewise::cli
