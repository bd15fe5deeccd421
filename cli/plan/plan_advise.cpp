#include "cli/plan/plan_advise.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "cli/plan/plan_against.h"
#include "cli/plan/plan_cells.h"
#include "cli/shell/failure.h"

namespace tilewise::cli {
namespace {

/// A smaller saving of time does not pay for less precision or another kernel.
constexpr double kWorthwhile = 1.1;

/// A way to run the problem.
struct Arm {
  const char* name;
  const char* implementation;
  DType dtype;
  Precision precision;
};

constexpr Arm kArms[] = {{"flash f32", "flash", DType::float32, Precision::exact},
                         {"flash tf32", "flash", DType::float32, Precision::tf32},
                         {"flash bf16", "flash", DType::bfloat16, Precision::exact},
                         {"eager f32", "eager", DType::float32, Precision::exact},
                         {"eager bf16", "eager", DType::bfloat16, Precision::exact}};
constexpr int kFlashF32 = 0, kFlashBf16 = 2, kEagerF32 = 3;

/// Times of passes, measured where they were.
class Times {
 public:
  Times(const Hardware& machine, const std::vector<std::string>& measured) : machine_(machine) {
    for (const std::string& path : measured) {
      const std::vector<Compared> passes = compare_with_results(path, "");
      const std::vector<MeasuredBoth> both = both_passes_of_results(path);
      if (passes.empty() && both.empty()) {
        throw NothingToCompare(
            fmt::format("--measured '{}': expected a row that a Tilewise kernel measured", path));
      }
      for (const Compared& row : passes) {
        keep(row.implementation + row.pass + row.problem, row.measured_ms);
      }
      for (const MeasuredBoth& row : both) keep(row.implementation + kBoth + row.problem, row.ms);
    }
  }

  struct Time {
    double ms = 0.0;
    bool measured = false;
    std::string_view bound;
  };

  /// All passes of the cell by an arm; none when it cannot run.
  std::optional<Time> of(Cell cell, const Arm& arm) const {
    cell.implementation = arm.implementation;
    cell.kernel.clear();
    cell.problem.dtype = arm.dtype;
    cell.problem.precision = arm.precision;
    Time time{0.0, true, ""};
    double slowest = 0.0;
    const std::vector<Planned> passes =
        plan_cell(cell, machine_, std::numeric_limits<std::int64_t>::max());
    for (const Planned& entry : passes) {
      if (!entry.plan) return std::nullopt;
      const std::string pass = entry.pass == Pass::forward ? "fwd" : "bwd";
      const auto found = measured_.find(arm.implementation + pass + format_case(cell.problem));
      time.measured = time.measured && found != measured_.end();
      const double ms = found != measured_.end() ? found->second : entry.plan->predicted_ms;
      time.ms += ms;
      if (ms > slowest) time.bound = entry.bounds.verdict();
      slowest = std::max(slowest, ms);
    }
    // Both as one say more than the sum of passes that were timed apart.
    const auto both = measured_.find(arm.implementation + (kBoth + format_case(cell.problem)));
    if (passes.size() == 2 && both != measured_.end()) {
      time.ms = both->second;
      time.measured = true;
    }
    return time;
  }

 private:
  inline static const std::string kBoth = "fwd+bwd";

  void keep(const std::string& key, double measured_ms) {
    double& ms = measured_[key];
    ms = ms == 0.0 ? measured_ms : std::min(ms, measured_ms);
  }

  const Hardware& machine_;
  std::map<std::string, double> measured_;
};

struct Line {
  std::int64_t length = 0;
  std::vector<std::optional<Times::Time>> times;
  int best = -1;
};

/// The most exact arm that no other beats by what is worth it; flash before eager. A prediction
/// does not outdo a measurement: where some arms were measured the others do not stand.
int choose_arm(const std::vector<std::optional<Times::Time>>& times) {
  const bool some = std::any_of(times.begin(), times.end(),
                                [](const auto& time) { return time && time->measured; });
  int best = -1;
  for (const int arm : {0, 1, 2, 3, 4}) {
    const auto at = static_cast<std::size_t>(arm);
    if (!times[at] || (some && !times[at]->measured)) continue;
    if (best < 0 || times[static_cast<std::size_t>(best)]->ms > kWorthwhile * times[at]->ms) {
      best = arm;
    }
  }
  return best;
}

Line line_of(const Cell& cell, const Times& times) {
  Line line{cell.problem.seq_k, {}, -1};
  for (const Arm& arm : kArms) line.times.push_back(times.of(cell, arm));
  line.best = choose_arm(line.times);
  return line;
}

Table advice_table(const std::vector<Line>& lines) {
  std::vector<Column> columns = {{"length"}};
  for (const Arm& arm : kArms) columns.push_back({std::string(arm.name) + "_ms", 4});
  columns.insert(columns.end(),
                 {{"bound"}, {"use"}, {"gain_over_f32", 2}, {"gain_over_eager", 2}, {"origin"}});
  Table table(columns);
  for (const Line& line : lines) {
    std::vector<Value> cells = {line.length};
    int measured = 0, there = 0;
    for (const std::optional<Times::Time>& time : line.times) {
      cells.push_back(time ? Value(time->ms) : Value());
      there += time ? 1 : 0;
      measured += time && time->measured ? 1 : 0;
    }
    const Times::Time& best = *line.times[static_cast<std::size_t>(line.best)];
    const auto over = [&](int arm) {
      const auto& other = line.times[static_cast<std::size_t>(arm)];
      return other ? Value(other->ms / best.ms) : Value();
    };
    cells.insert(cells.end(),
                 {best.bound, kArms[line.best].name, over(kFlashF32), over(kEagerF32),
                  measured == 0 ? Value("predicted")
                                : Value(fmt::format("{} of {} measured", measured, there))});
    table.add(std::move(cells));
  }
  return table;
}

/// The shortest length from which on `slow` takes more than what is worth it longer than `fast`, by
/// bisection between the lines where that changes last; 0: from the shortest on; none: nowhere.
std::optional<std::int64_t> crossover(const std::vector<Line>& lines, const Cell& cell,
                                      const Times& times, int slow, int fast) {
  const auto pays = [&](const Line& line) {
    const auto& a = line.times[static_cast<std::size_t>(slow)];
    const auto& b = line.times[static_cast<std::size_t>(fast)];
    return a && b && a->ms > kWorthwhile * b->ms;
  };
  if (!pays(lines.back())) return std::nullopt;
  std::size_t first = lines.size() - 1;
  while (first > 0 && pays(lines[first - 1])) --first;
  if (first == 0) return 0;
  std::int64_t no = lines[first - 1].length, yes = lines[first].length;
  while (yes - no > 16) {
    Cell middle = cell;
    middle.problem.seq_q = middle.problem.seq_k = (no + yes) / 2;
    (pays(line_of(middle, times)) ? yes : no) = middle.problem.seq_k;
  }
  return yes;
}

std::string crossover_text(const char* what, const std::optional<std::int64_t>& at,
                           std::int64_t shortest) {
  if (!at) return fmt::format("- {}: not in this range", what);
  if (*at == 0) return fmt::format("- {}: at every length from {} on", what, shortest);
  return fmt::format("- {}: from length {} on", what, *at);
}

/// Where flash gains least over eager among lengths that both neighbours do better at: seed 003's
/// dip.
std::string dip_text(const std::vector<Line>& lines) {
  const auto gain = [](const Line& line) {
    const auto &flash = line.times[kFlashF32], &eager = line.times[kEagerF32];
    return flash && eager ? eager->ms / flash->ms : 0.0;
  };
  for (std::size_t i = 1; i + 1 < lines.size(); ++i) {
    const double here = gain(lines[i]);
    if (here > 0.0 && kWorthwhile * here < gain(lines[i - 1]) &&
        kWorthwhile * here < gain(lines[i + 1])) {
      return fmt::format(
          "- flash over eager in float32 dips at {}: {:.2f} times, {:.2f} before, "
          "{:.2f} after\n",
          lines[i].length, here, gain(lines[i - 1]), gain(lines[i + 1]));
    }
  }
  return "- flash over eager in float32 has no dip in this range (seed 003 saw one at 1024)\n";
}

/// "flash tf32 to 1024, flash bf16 from 2048 on": `of` at the lines' lengths, where it changes.
template <class Of>
std::string ranges_text(const std::vector<Line>& lines, const Of& of) {
  std::string text;
  for (std::size_t begin = 0, end = 0; begin < lines.size(); begin = end) {
    while (end < lines.size() && of(lines[end]) == of(lines[begin])) ++end;
    const std::int64_t first = lines[begin].length, last = lines[end - 1].length;
    text += text.empty() ? "" : ", ";
    text += of(lines[begin]);
    if (begin == 0 && end == lines.size()) {
      text += " at every length";
    } else if (end == lines.size()) {
      text += fmt::format(" from {} on", first);
    } else if (begin == 0) {
      text += fmt::format(" to {}", last);
    } else {
      text +=
          first == last ? fmt::format(" at {}", first) : fmt::format(" at {} to {}", first, last);
    }
  }
  return text;
}

}  // namespace

std::string advise(const std::vector<Cell>& cells, const Machine& machine,
                   const std::vector<std::string>& measured, Format format) {
  const Times times(machine.hardware, measured);
  std::vector<Line> lines;
  for (const Cell& cell : cells) {
    if (cell.problem.seq_q != cell.problem.seq_k) {
      throw BadInput("--advise: expected equal numbers of keys and queries");
    }
    Case shape = cell.problem;
    shape.seq_q = shape.seq_k = cells.front().problem.seq_k;
    if (format_case(shape) != format_case(cells.front().problem)) {
      throw BadInput("--advise: expected one shape at several lengths");
    }
    lines.push_back(line_of(cell, times));
    if (lines.back().best < 0) throw Unsupported("no kernel runs " + format_case(cell.problem));
  }
  std::sort(lines.begin(), lines.end(),
            [](const Line& a, const Line& b) { return a.length < b.length; });
  const auto bf16 = crossover(lines, cells.front(), times, kFlashF32, kFlashBf16);
  const auto flash = crossover(lines, cells.front(), times, kEagerF32, kFlashF32);
  const Table table = advice_table(lines);
  if (format == Format::csv) return table.csv();
  if (format == Format::json) {
    const Value document = {{"machine", machine.hardware.name},
                            {"worthwhile", kWorthwhile},
                            {"bf16_from", bf16 ? Value(*bf16) : Value()},
                            {"flash_from", flash ? Value(*flash) : Value()},
                            {"lengths", table.json()}};
    return document.dump(2) + "\n";
  }
  Case shape = cells.front().problem;
  std::vector<std::string> passes;
  for (const Timed timed : cells.front().timed) passes.emplace_back(timed_name(timed));
  const std::string use =
      ranges_text(lines, [](const Line& line) { return std::string(kArms[line.best].name); });
  const std::string bound = ranges_text(lines, [](const Line& line) {
    return std::string(line.times[static_cast<std::size_t>(line.best)]->bound);
  });
  return fmt::format(
      "{} ({})\n{}\nbatch {}, heads {}, dim {}; {}\n\n{}\nA less exact type is chosen if it saves "
      "{:.0f} % or more:\n- use {}\n- bottleneck: {}\n{}\n{}\n{}- seed 003 names 256, 512 and 1024 "
      "as the length from which 16 bits pay; on this machine: {}\n",
      machine.hardware.name, machine.origin, origin_of_times(machine), shape.batch, shape.heads_q,
      shape.head_dim, fmt::join(passes, " + "), table.markdown(), 100.0 * (1.0 - 1.0 / kWorthwhile),
      use, bound, crossover_text("bf16 instead of float32, flash", bf16, lines.front().length),
      crossover_text("flash instead of eager, float32", flash, lines.front().length),
      dip_text(lines),
      !bf16        ? "no length in this range"
      : *bf16 == 0 ? fmt::format("every length from {} on", lines.front().length)
                   : fmt::format("{}", *bf16));
}

}  // namespace tilewise::cli
