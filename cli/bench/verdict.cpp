#include "cli/bench/verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "harness/timer.h"

namespace tilewise::cli {
namespace {

/// Times and bytes within this are the same.
constexpr double kSame = 0.05;
/// Problems that are named one by one.
constexpr std::size_t kNamed = 6;

/// A pass of one problem by two implementations.
struct Match {
  const Measurement* base = nullptr;
  const Measurement* other = nullptr;
  bool ran() const { return base->status == Status::ok && other->status == Status::ok; }
  double speed() const { return base->ms.median / other->ms.median; }
};

std::string name_of(const Measurement& row) {
  return fmt::format("{} x {} {}", row.problem.seq_q, row.problem.head_dim, timed_name(row.timed));
}

std::vector<Match> matches(const std::vector<Measurement>& rows, const std::string& base,
                           const std::string& other) {
  std::map<std::pair<std::string, Timed>, Match> by_pass;
  for (const Measurement& row : rows) {
    Match& match = by_pass[{format_case(row.problem), row.timed}];
    if (row.implementation == base) match.base = &row;
    if (row.implementation == other) match.other = &row;
  }
  std::vector<Match> out;
  for (const auto& [pass, match] : by_pass) {
    if (match.base != nullptr && match.other != nullptr) out.push_back(match);
  }
  std::stable_sort(out.begin(), out.end(), [](const Match& a, const Match& b) {
    const Case &x = a.base->problem, &y = b.base->problem;
    return std::pair(x.seq_q, x.head_dim) < std::pair(y.seq_q, y.head_dim);
  });
  return out;
}

std::string range(const std::vector<double>& values) {
  const Statistics s = summarize(values);
  return fmt::format("{:.2f} to {:.2f} (median {:.2f})", s.min, s.max, s.median);
}

/// One implementation against another.
class Verdict {
 public:
  Verdict(const std::vector<Measurement>& rows, std::string base, std::string other)
      : base_(std::move(base)), other_(std::move(other)), matches_(matches(rows, base_, other_)) {}

  std::string text() const {
    std::string out = fmt::format("\n**{} against {}**: both ran in {} of {} passes\n\n", other_,
                                  base_, all_speeds().size(), matches_.size());
    for (const std::string& line : {speed(), losses(), memory(), running_out()}) {
      if (!line.empty()) out += "- " + line + "\n";
    }
    return out + "- " + conclusion() + "\n- " + next_step() + "\n";
  }

 private:
  std::vector<double> speeds(Timed timed) const {
    std::vector<double> out;
    for (const Match& m : matches_) {
      if (m.ran() && m.base->timed == timed) out.push_back(m.speed());
    }
    return out;
  }
  std::vector<double> all_speeds() const {
    std::vector<double> out;
    for (const Match& m : matches_) {
      if (m.ran()) out.push_back(m.speed());
    }
    return out;
  }
  template <class Bytes>
  std::vector<double> shares(const Bytes& bytes) const {
    std::vector<double> out;
    for (const Match& m : matches_) {
      if (m.ran() && bytes(*m.base) > 0)
        out.push_back(static_cast<double>(bytes(*m.other)) / static_cast<double>(bytes(*m.base)));
    }
    return out;
  }
  std::vector<double> live() const {
    return shares([](const Measurement& row) { return row.live_bytes; });
  }
  static double median(const std::vector<double>& values) {
    return values.empty() ? 1.0 : summarize(values).median;
  }
  std::vector<const Match*> lost() const {
    std::vector<const Match*> out;
    for (const Match& m : matches_) {
      if (m.ran() && m.speed() < 1.0 - kSame) out.push_back(&m);
    }
    return out;
  }
  std::int64_t out_of_memory(const Measurement* Match::*side) const {
    return std::count_if(matches_.begin(), matches_.end(),
                         [&](const Match& m) { return (m.*side)->status == Status::oom; });
  }

  std::string speed() const {
    std::vector<std::string> parts;
    for (const Timed timed : {Timed::forward, Timed::backward, Timed::both}) {
      const std::vector<double> all = speeds(timed);
      if (!all.empty()) parts.push_back(fmt::format("{} {}", timed_name(timed), range(all)));
    }
    if (parts.empty()) return "Speed: both measured no common problem.";
    return fmt::format("Speed: {} times as fast.", fmt::join(parts, ", "));
  }
  std::string losses() const {
    const std::vector<const Match*> all = lost();
    if (all.empty()) return "";
    std::vector<std::string> parts;
    for (const Match* m : all) {
      if (parts.size() == kNamed) break;
      parts.push_back(fmt::format("{} ({:.2f})", name_of(*m->base), m->speed()));
    }
    const std::string more =
        all.size() > kNamed ? fmt::format(" and {} more", all.size() - kNamed) : std::string();
    return fmt::format("Slower at {}{} (length x dim).", fmt::join(parts, ", "), more);
  }
  std::string memory() const {
    const std::vector<double> peak = shares([](const Measurement& row) { return row.peak_bytes; });
    if (peak.empty()) return "";
    return fmt::format("Memory over that of {}: live {}, peak {}.", base_, range(live()),
                       range(peak));
  }
  std::string running_out() const {
    const std::int64_t before = out_of_memory(&Match::base), after = out_of_memory(&Match::other);
    if (before == 0 && after == 0) return "No run was out of memory.";
    for (const Match& m : matches_) {
      if (m.base->status != Status::oom && m.other->status != Status::oom) continue;
      return fmt::format("Out of memory: {} in {} passes, {} in {}; first at {}.", base_, before,
                         other_, after, name_of(*m.base));
    }
    return "";
  }

  bool is_faster() const { return median(all_speeds()) > 1.0 + kSame; }
  bool is_slower() const { return median(all_speeds()) < 1.0 - kSame; }
  bool keeps_less() const {
    return median(live()) < 1.0 - kSame ||
           out_of_memory(&Match::other) < out_of_memory(&Match::base);
  }

  std::string conclusion() const {
    if (all_speeds().empty()) return "No conclusion: both measured no common problem.";
    const char* time = is_faster() ? "is faster" : is_slower() ? "is slower" : "takes as long";
    const char* keeps = keeps_less() ? "keeps less memory" : "stores as much or more";
    const char* so = keeps_less()
                         ? (is_slower() ? "it trades time for memory" : "longer sequences fit")
                         : "stored data limits the length as before";
    return fmt::format("Conclusion: {} {} and {}, so {}.", other_, time, keeps, so);
  }
  std::string next_step() const {
    if (all_speeds().empty()) return "Next: shorter sequences, or a larger --mem-limit.";
    if (!keeps_less() && (out_of_memory(&Match::base) > 0 || is_faster())) {
      return "Next: store no S x S matrix, so that memory grows linearly: --impl flash.";
    }
    if (!lost().empty()) {
      return fmt::format(
          "Next: use {} for the passes named above, or find their bottleneck with `tilewise plan`.",
          base_);
    }
    const bool floats = matches_.front().base->problem.dtype == DType::float32;
    if (floats && keeps_less()) return "Next: halve memory with 16-bit types: --dtype bf16.";
    return "Next: find the bottleneck with `tilewise plan`.";
  }

  std::string base_, other_;
  std::vector<Match> matches_;
};

}  // namespace

std::string verdicts(const std::vector<Measurement>& rows) {
  std::vector<std::string> names;
  for (const Measurement& row : rows) {
    if (std::find(names.begin(), names.end(), row.implementation) == names.end())
      names.push_back(row.implementation);
  }
  std::string out;
  for (std::size_t n = 1; n < names.size(); ++n) out += Verdict(rows, names[0], names[n]).text();
  return out;
}

}  // namespace tilewise::cli
