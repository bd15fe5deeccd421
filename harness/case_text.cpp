#include "harness/case_text.h"

#include <charconv>
#include <cmath>
#include <cstdint>

namespace tilewise::case_text {
namespace {

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

constexpr std::string_view kFillHelp =
    "a fill: randn, rand, sign, iota, heads, arange or eye, then optionally *SCALE and +SHIFT; or "
    "a number, zeros, ones, nan or inf";
constexpr std::string_view kRegionHelp =
    "a region: all, rowsA-B, keysA-B, upper, beyondN or someFRACTION, then optionally @BATCH";

/// Reads a number at the front of `text` and moves past it.
bool take_number(std::string_view& text, double& value) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (!text.empty() && *begin == '+') ++begin;
  const auto [rest, error] = std::from_chars(begin, end, value);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
  return true;
}

/// "A" or "A-B", both at least 0.
void read_range(std::string_view text, Region& region) {
  const std::size_t dash = text.find('-');
  region.begin = read_integer(text.substr(0, dash));
  region.end = dash == std::string_view::npos ? region.begin : read_integer(text.substr(dash + 1));
  if (region.begin < 0 || region.end < region.begin)
    throw std::string("a range A-B with 0 <= A <= B");
}

}  // namespace

void Given::take(const std::string& what, std::string_view word) {
  const auto [first, is_new] = words_.emplace(what, word);
  if (!is_new) throw "one word for " + what + ", and " + quoted(first->second) + " is one";
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::int64_t read_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw "an integer instead of " + quoted(text);
  }
  if (value > Tensor::kMaxElems || value < -Tensor::kMaxElems) {
    throw "an integer within 2^56 of 0 instead of " + quoted(text);
  }
  return value;
}

std::uint64_t read_seed(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  return static_cast<std::uint64_t>(read_integer(text));
}

std::vector<std::int64_t> read_integers(std::string_view text) {
  std::vector<std::int64_t> values;
  for (std::string_view part : split(text, ',')) values.push_back(read_integer(part));
  return values;
}

double read_number(std::string_view text) {
  double value = 0.0;
  std::string_view rest = text;
  if (!take_number(rest, value) || !rest.empty()) throw "a number instead of " + quoted(text);
  return value;
}

Fill read_fill(std::string_view text) {
  Fill fill;
  if (text == "zeros") return {Fill::Kind::zeros, 0.0, 0.0};
  if (text == "ones") return {Fill::Kind::zeros, 0.0, 1.0};
  std::string_view rest = text;
  double constant = 0.0;
  if (take_number(rest, constant) && rest.empty()) return {Fill::Kind::zeros, 0.0, constant};
  const std::size_t letters = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz");
  const Fill::Kind* kind = find(kFills, text.substr(0, letters));
  if (kind == nullptr) throw std::string(kFillHelp);
  fill.kind = *kind;
  rest = letters == std::string_view::npos ? std::string_view() : text.substr(letters);
  if (!rest.empty() && rest.front() == '*') {
    rest.remove_prefix(1);
    if (!take_number(rest, fill.scale)) throw std::string(kFillHelp);
  }
  if (!rest.empty() && (!take_number(rest, fill.shift) || !rest.empty())) {
    throw std::string(kFillHelp);
  }
  return fill;
}

Region read_region(std::string_view text) {
  Region region;
  const std::size_t at = text.find('@');
  if (at != std::string_view::npos) region.batch = read_integer(text.substr(at + 1));
  text = text.substr(0, at);
  const auto after = [&](std::string_view word) { return text.substr(word.size()); };
  if (text == "all") {
    region.kind = Region::Kind::all;
  } else if (text == "upper") {
    region.kind = Region::Kind::upper;
  } else if (text.starts_with("rows")) {
    region.kind = Region::Kind::rows;
    read_range(after("rows"), region);
  } else if (text.starts_with("keys")) {
    region.kind = Region::Kind::keys;
    read_range(after("keys"), region);
  } else if (text.starts_with("beyond")) {
    region.kind = Region::Kind::beyond;
    region.begin = read_integer(after("beyond"));
  } else if (text.starts_with("some")) {
    region.kind = Region::Kind::some;
    region.fraction = read_number(after("some"));
    if (!(region.fraction >= 0.0 && region.fraction <= 1.0)) throw std::string(kRegionHelp);
  } else {
    throw std::string(kRegionHelp);
  }
  return region;
}

std::string number(double value) {
  if (std::isnan(value)) return "nan";
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  (void)error;  // 32 characters hold every double
  return {text.data(), end};
}

std::string integers(const std::vector<std::int64_t>& values) {
  std::string text;
  for (std::int64_t value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
}

std::string fill(const Fill& fill) {
  if (fill.kind == Fill::Kind::zeros) {
    if (fill.shift == 0.0 && !std::signbit(fill.shift)) return "zeros";
    return fill.shift == 1.0 ? "ones" : number(fill.shift);
  }
  std::string text(name(kFills, fill.kind));
  if (fill.scale != 1.0) text += "*" + number(fill.scale);
  if (fill.shift != 0.0) text += (fill.shift > 0.0 ? "+" : "") + number(fill.shift);
  return text;
}

std::string region(const Region& region) {
  std::string text;
  const auto range = [&] {
    std::string both = std::to_string(region.begin);
    if (region.end != region.begin) both += "-" + std::to_string(region.end);
    return both;
  };
  switch (region.kind) {
    case Region::Kind::all:
      text = "all";
      break;
    case Region::Kind::rows:
      text = "rows" + range();
      break;
    case Region::Kind::keys:
      text = "keys" + range();
      break;
    case Region::Kind::upper:
      text = "upper";
      break;
    case Region::Kind::beyond:
      text = "beyond" + std::to_string(region.begin);
      break;
    case Region::Kind::some:
      text = "some" + number(region.fraction);
      break;
  }
  if (region.batch >= 0) text += "@" + std::to_string(region.batch);
  return text;
}

}  // namespace tilewise::case_text
