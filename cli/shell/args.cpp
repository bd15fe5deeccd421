#include "cli/shell/args.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "cli/shell/failure.h"

namespace tilewise::cli {
namespace {

constexpr std::size_t kMostAxisValues = 10000;

[[noreturn]] void reject(std::string_view option, std::string_view text,
                         std::string_view expected) {
  throw BadInput(fmt::format("{} '{}': expected {}", option, text, expected));
}

std::optional<std::int64_t> integer(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || text.empty()) return std::nullopt;
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

/// Appends begin, begin * factor, ... or begin, begin + step, ... up to end.
void append_range(std::string_view option, std::string_view text, std::int64_t least,
                  std::vector<std::int64_t>& out) {
  constexpr std::string_view kExpected = "a range FIRST:LAST:xFACTOR or FIRST:LAST:+STEP";
  const std::vector<std::string_view> parts = split(text, ':');
  if (parts.size() != 3 || parts[2].size() < 2) reject(option, text, kExpected);
  const std::int64_t first = parse_integer(option, parts[0], least);
  const std::int64_t last = parse_integer(option, parts[1], least);
  const bool times = parts[2][0] == 'x';
  const std::optional<std::int64_t> by = integer(parts[2].substr(1));
  const bool grows = by && (times ? *by > 1 && first > 0 : parts[2][0] == '+' && *by > 0);
  if (!grows || last < first) reject(option, text, kExpected);
  for (std::int64_t value = first; value <= last;) {
    out.push_back(value);
    if (out.size() > kMostAxisValues) reject(option, text, "at most 10000 values");
    if (times ? value > last / *by : value > last - *by) break;
    value = times ? value * *by : value + *by;
  }
}

}  // namespace

std::vector<std::string> split_list(std::string_view option, std::string_view text) {
  std::vector<std::string> out;
  for (const std::string_view part : split(text, ',')) {
    if (part.empty()) reject(option, text, "values separated by commas");
    out.emplace_back(part);
  }
  return out;
}

template <class Integer>
Integer parse_integer(std::string_view option, std::string_view text,
                      std::type_identity_t<Integer> least, std::type_identity_t<Integer> most) {
  Integer value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end && value >= least && value <= most) return value;
  const bool bounded =
      most != std::numeric_limits<Integer>::max() || error == std::errc::result_out_of_range;
  reject(option, text,
         bounded ? fmt::format("an integer from {} to {}", least, most)
                 : fmt::format("an integer of at least {}", least));
}

template int parse_integer<int>(std::string_view, std::string_view, int, int);
template std::int64_t parse_integer<std::int64_t>(std::string_view, std::string_view, std::int64_t,
                                                  std::int64_t);
template std::uint64_t parse_integer<std::uint64_t>(std::string_view, std::string_view,
                                                    std::uint64_t, std::uint64_t);

double parse_real(std::string_view option, std::string_view text, double least, double most) {
  double value = 0.0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end && value >= least && value <= most) return value;
  reject(option, text,
         std::isinf(least)  ? "a number"
         : std::isinf(most) ? fmt::format("a number of at least {}", least)
                            : fmt::format("a number from {} to {}", least, most));
}

std::vector<std::int64_t> parse_axis(std::string_view option, std::string_view text,
                                     std::int64_t least) {
  std::vector<std::int64_t> out;
  for (const std::string& part : split_list(option, text)) {
    if (part.find(':') == std::string::npos) {
      out.push_back(parse_integer(option, part, least));
    } else {
      append_range(option, part, least, out);
    }
  }
  return out;
}

std::int64_t parse_bytes(std::string_view option, std::string_view text) {
  constexpr std::string_view kExpected = "a size such as 24GiB, 500MB or 4096";
  constexpr std::string_view kUnits = "kmgt";
  double number = 0.0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || !(number >= 0.0)) reject(option, text, kExpected);
  const std::string unit = lower(std::string_view(stop, static_cast<std::size_t>(end - stop)));
  double factor = 1.0;
  if (!unit.empty() && unit != "b") {
    const std::size_t power = kUnits.find(unit[0]);
    const std::string_view rest = std::string_view(unit).substr(1);
    const bool decimal = rest == "b";
    if (power == std::string_view::npos || (!rest.empty() && rest != "ib" && !decimal)) {
      reject(option, text, kExpected);
    }
    factor = std::pow(decimal ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = number * factor;
  if (bytes > 9e18) reject(option, text, kExpected);
  return static_cast<std::int64_t>(bytes);
}

Device parse_device(std::string_view option, std::string_view text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {DeviceType::cuda, 0};
  if (text.substr(0, 5) == "cuda:") {
    const std::optional<std::int64_t> index = integer(text.substr(5));
    if (index && *index >= 0 && *index < 1024) return {DeviceType::cuda, static_cast<int>(*index)};
  }
  reject(option, text, "cpu or cuda:N");
}

DType parse_float_type(std::string_view option, std::string_view text) {
  for (const auto& [brief, dtype] : {std::pair{"f32", DType::float32},
                                     {"bf16", DType::bfloat16},
                                     {"f16", DType::float16},
                                     {"f64", DType::float64}}) {
    if (text == brief || text == dtype_name(dtype)) return dtype;
  }
  reject(option, text, "f32, bf16, f16 or f64");
}

Window parse_window(std::string_view option, std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ',');
  if (parts.size() != 2) reject(option, text, "LEFT,RIGHT, with - for an unbounded side");
  Window window;
  for (auto [part, side] : {std::pair{parts[0], &window.left}, {parts[1], &window.right}}) {
    if (part.empty() || part == "-") continue;
    *side = integer(part);
    if (!*side) reject(option, text, "LEFT,RIGHT, with - for an unbounded side");
  }
  return window;
}

void check_one_of(std::string_view option, std::string_view text,
                  const std::vector<std::string>& accepted) {
  if (std::find(accepted.begin(), accepted.end(), text) == accepted.end()) {
    reject(option, text, fmt::format("one of {}", fmt::join(accepted, ", ")));
  }
}

double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

std::string bytes_text(std::int64_t bytes) {
  const double mib = mebibytes(bytes);
  if (bytes < 1024) return fmt::format("{} B", bytes);
  if (mib < 1.0) return fmt::format("{:.1f} KiB", mib * 1024.0);
  if (mib < 1024.0) return fmt::format("{:.1f} MiB", mib);
  return fmt::format("{:.1f} GiB", mib / 1024.0);
}

}  // namespace tilewise::cli
