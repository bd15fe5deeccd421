// tilewise_fit RESULTS OUTPUT: fits the constants of the time model to the result files of a folder
// and writes them as src/plan/fitted_constants.inc. Prints the errors before and after.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "cli/plan/plan_against.h"
#include "cli/shell/failure.h"
#include "harness/timer.h"

namespace tilewise::cli {
namespace {

namespace fs = std::filesystem;

/// One equation: features . x = ms.
struct Sample {
  std::vector<double> features;
  double ms = 0.0;
};

/// Fewer rows than this say too little about a kernel.
constexpr std::size_t kLeastRows = 6;
/// Without a row as short as this the time that every call has on top of its work is not told from
/// it.
constexpr double kShortMs = 0.05;
/// Short problems' S x S matrices fit the L2 cache and tell nothing of longer ones: fewer rows than
/// this are short ones and little else.
constexpr std::size_t kLeastUnfusedRows = 16;
/// A correction must lower the median error by so much, else the kernel's own model stays.
constexpr double kLeastGain = 0.01;

double predict(const Sample& s, const std::vector<double>& x) {
  double ms = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) ms += s.features[i] * x[i];
  return ms;
}

Statistics errors(const std::vector<Sample>& samples, const std::vector<double>& x) {
  std::vector<double> out;
  out.reserve(samples.size());
  for (const Sample& s : samples) out.push_back(std::abs(predict(s, x) / s.ms - 1.0));
  return summarize(out);
}

/// Solves the normal equations of the kept features by Gauss with pivoting; a singular one gives 0.
std::vector<double> solve(std::vector<std::vector<double>> a) {
  const std::size_t n = a.size();
  for (std::size_t c = 0; c < n; ++c) {
    std::size_t pivot = c;
    for (std::size_t r = c; r < n; ++r) {
      if (std::abs(a[r][c]) > std::abs(a[pivot][c])) pivot = r;
    }
    std::swap(a[c], a[pivot]);
    if (std::abs(a[c][c]) < 1e-30) continue;
    for (std::size_t r = 0; r < n; ++r) {
      if (r == c) continue;
      const double factor = a[r][c] / a[c][c];
      for (std::size_t k = c; k <= n; ++k) a[r][k] -= factor * a[c][k];
    }
  }
  std::vector<double> x(n);
  for (std::size_t c = 0; c < n; ++c) x[c] = std::abs(a[c][c]) < 1e-30 ? 0.0 : a[c][n] / a[c][c];
  return x;
}

/// Least absolute relative error by reweighted least squares, with coefficients of at least 0: a
/// negative one is left out and the rest fitted again.
std::vector<double> fit(const std::vector<Sample>& samples) {
  constexpr int kRounds = 60;
  const std::size_t n = samples.front().features.size();
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < n; ++i) kept.push_back(i);
  std::vector<double> x(n, 0.0);
  while (!kept.empty()) {
    std::vector<double> weights(samples.size(), 1.0), y;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::vector<double>> a(kept.size(), std::vector<double>(kept.size() + 1, 0.0));
      for (std::size_t s = 0; s < samples.size(); ++s) {
        for (std::size_t r = 0; r < kept.size(); ++r) {
          const double f = samples[s].features[kept[r]] / samples[s].ms;
          for (std::size_t c = 0; c < kept.size(); ++c) {
            a[r][c] += weights[s] * f * samples[s].features[kept[c]] / samples[s].ms;
          }
          a[r].back() += weights[s] * f;
        }
      }
      y = solve(a);
      std::fill(x.begin(), x.end(), 0.0);
      for (std::size_t i = 0; i < kept.size(); ++i) x[kept[i]] = y[i];
      for (std::size_t s = 0; s < samples.size(); ++s) {
        weights[s] = 1.0 / std::max(0.01, std::abs(predict(samples[s], x) / samples[s].ms - 1.0));
      }
    }
    const auto least = std::min_element(y.begin(), y.end());
    if (*least >= 0.0) return x;
    kept.erase(kept.begin() + (least - y.begin()));
  }
  return std::vector<double>(n, 0.0);
}

void report(const std::string& name, const std::vector<Sample>& samples,
            const std::vector<double>& x, bool fitted) {
  // Halves that were not fitted: what to expect of rows that have not been measured.
  double held_out = 0.0;
  if (fitted && samples.size() >= 2 * kLeastRows) {
    std::vector<double> out;
    for (const std::size_t parity : {0U, 1U}) {
      std::vector<Sample> half;
      for (std::size_t i = parity; i < samples.size(); i += 2) half.push_back(samples[i]);
      const std::vector<double> other = fit(half);
      for (std::size_t i = 1 - parity; i < samples.size(); i += 2) {
        out.push_back(std::abs(predict(samples[i], other) / samples[i].ms - 1.0));
      }
    }
    held_out = summarize(out).median;
  }
  const Statistics s = errors(samples, x);
  fmt::print("{:<40} {:>4} rows: median error {:>5.1f} %, 90th percentile {:>5.1f} %", name,
             samples.size(), 100.0 * s.median, 100.0 * s.p90);
  if (held_out > 0.0) fmt::print("; on halves left out {:.1f} %", 100.0 * held_out);
  fmt::print("\n");
}

/// Kernels with S x S matrices in memory.
bool unfused(const std::string& kernel) {
  return kernel.starts_with("eager") || kernel.starts_with("fused");
}

std::string cpu_constants(const std::vector<Compared>& rows) {
  std::string out;
  for (const auto& [name, form, backward] :
       {std::tuple{"kCpuFlashForward", CpuForm::flash, false},
        {"kCpuDecode", CpuForm::decode, false},
        {"kCpuFlashBackward", CpuForm::flash, true},
        {"kCpuUnfusedForward", CpuForm::unfused, false},
        {"kCpuUnfusedBackward", CpuForm::unfused, true},
        {"kCpuUnfusedShortForward", CpuForm::unfused_short, false},
        {"kCpuUnfusedShortBackward", CpuForm::unfused_short, true}}) {
    std::vector<Sample> samples;
    for (const Compared& row : rows) {
      const bool counted = row.implementation == "flash" || unfused(row.implementation);
      if (row.arch != 0 || !counted || row.form != form || row.backward != backward) continue;
      samples.push_back({{row.features.begin(), row.features.end()}, row.measured_ms});
    }
    if (samples.size() < kLeastRows) throw std::runtime_error(std::string(name) + ": too few rows");
    const std::vector<double> x = fit(samples);
    report(name, samples, x, true);
    out += fmt::format("constexpr CpuTerms {} = {{{:.4g}}};\n", name, fmt::join(x, ", "));
  }
  return out;
}

const char* arithmetic_name(Arithmetic kind) {
  switch (kind) {
    case Arithmetic::bits16:
      return "bits16";
    case Arithmetic::tf32:
      return "tf32";
    case Arithmetic::float32:
      return "float32";
  }
  return "";
}

std::string cuda_constants(const std::vector<Compared>& rows) {
  std::map<std::tuple<std::string, int, Arithmetic, bool>, std::vector<Sample>> kernels;
  for (const Compared& row : rows) {
    if (row.arch > 0) {
      kernels[{row.kernel, row.arch, row.arithmetic, row.masked}].push_back(
          {{1e-3, row.model_ms}, row.measured_ms});
    }
  }
  std::string out;
  for (const auto& [key, samples] : kernels) {
    const auto& [kernel, arch, kind, masked] = key;
    const std::string name = fmt::format("{} sm_{} {}{}", kernel, arch, arithmetic_name(kind),
                                         masked ? " masked" : " unmasked");
    const std::vector<double> own = {0.0, 1.0};
    report(name + ", own model", samples, own, false);
    if (samples.size() < kLeastRows) continue;
    std::vector<Sample> seen = samples;
    std::sort(seen.begin(), seen.end(),
              [](const Sample& a, const Sample& b) { return a.ms < b.ms; });
    if (unfused(kernel) && seen.size() < kLeastUnfusedRows) continue;
    if (seen.front().ms > kShortMs) {
      for (Sample& s : seen) s.features[0] = 0.0;
    }
    std::vector<double> x = fit(seen);
    if (errors(samples, x).median > errors(samples, own).median - kLeastGain) {
      x = own;  // said all the same: else the correction of the other masks would be taken
    } else {
      report(name + ", corrected", samples, x, true);
    }
    out += fmt::format("    {{\"{}\", {}, Arithmetic::{}, {}, {:.4g}, {:.4g}}},\n", kernel, arch,
                       arithmetic_name(kind), masked, x[0], x[1]);
  }
  return out.empty() ? "    {\"\", 0, Arithmetic::bits16, false, 0.0, 1.0},\n" : out;
}

/// When a result file was measured, as text that sorts; empty when it does not say.
std::string date_of(const fs::path& path) {
  std::ifstream file(path);
  const Value document = Value::parse(file, nullptr, false);
  if (!document.is_object()) return {};
  const Value environment = document.value("environment", Value());
  return environment.is_object() ? environment.value("date", "") : "";
}

/// None of a file whose machine cases/hardware.json does not have.
std::vector<Compared> rows_of(const fs::path& path) {
  try {
    return compare_with_results(path.string(), "");
  } catch (const NothingToCompare& unknown) {
    fmt::print("{} is not used: {}\n", path.string(), unknown.what());
    return {};
  }
}

int run(const fs::path& folder, const fs::path& output) {
  std::vector<fs::path> paths;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Compared> rows;
  // Of a GPU kernel's problem that was measured again, the newest counts: kernels change.
  std::map<std::tuple<int, std::string, std::string>, std::pair<std::string, Compared>> newest;
  for (const fs::path& path : paths) {
    const std::string date = date_of(path);
    for (Compared& row : rows_of(path)) {
      if (row.arch == 0) {
        rows.push_back(std::move(row));
        continue;
      }
      auto& kept = newest[{row.arch, row.kernel, row.problem}];
      if (kept.first <= date) kept = {date, std::move(row)};
    }
  }
  for (auto& [key, kept] : newest) rows.push_back(std::move(kept.second));
  const std::string text =
      "// Made by ./tw fit from bench/results; do not edit.\n"
      "// Microseconds, flops for a pair, factors of flops and bytes, flops for an element that "
      "is\n// packed, copied and widened, and for a start.\n" +
      cpu_constants(rows) +
      "// Kernel, architecture, arithmetic, masked, microseconds, factor of its own model.\n" +
      "constexpr CudaTerms kCuda[] = {\n" + cuda_constants(rows) + "};\n";
  std::ofstream file(output);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(output.string() + ": cannot be written");
  return 0;
}

}  // namespace
}  // namespace tilewise::cli

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw std::runtime_error("usage: tilewise_fit RESULTS OUTPUT");
    return tilewise::cli::run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tilewise_fit: {}\n", error.what());
    return 2;
  }
}
