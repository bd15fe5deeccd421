#include "harness/case_captures.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "expression/interpret.h"
#include "expression/lower.h"
#include "expression/term.h"
#include "harness/case_text.h"
#include "harness/case_values.h"

namespace tilewise {
namespace {

using namespace case_text;

constexpr std::array<Word<DType>, 8> kTypes{{{"f64", DType::float64},
                                             {"f32", DType::float32},
                                             {"bf16", DType::bfloat16},
                                             {"f16", DType::float16},
                                             {"bool", DType::boolean},
                                             {"u8", DType::uint8},
                                             {"i32", DType::int32},
                                             {"i64", DType::int64}}};

constexpr std::string_view kHelp =
    "NAME:TYPE[SIZE,...] or NAME:TYPE[SIZE,...]=CONTENT, separated by ';' (TYPE: f64, f32, bf16, "
    "f16, bool, u8, i32, i64; SIZE: a formula of B, Hq, Hk, Sq, Sk; CONTENT: a fill, or a formula "
    "of the element's index ..., i, j)";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// A formula in which the case's sizes have names.
Expression formula(const Case& c, std::string_view text) {
  std::int64_t queries = c.seq_q;
  std::int64_t keys = c.seq_k;
  if (c.packed) {
    const auto longest = [](const std::vector<std::int64_t>& lengths) {
      return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
    };
    queries = longest(c.packed->q_lengths);
    keys = longest(c.packed->k_lengths);
  }
  std::string all = "B = " + std::to_string(c.batch) + "; Hq = " + std::to_string(c.heads_q) +
                    "; Hk = " + std::to_string(c.heads_k) + "; Sq = " + std::to_string(queries) +
                    "; Sk = " + std::to_string(keys) + "; ";
  return Expression::parse(all.append(text));
}

/// A fill, or nothing where the text is a formula.
std::optional<Fill> fill_of(std::string_view text) {
  try {
    return read_fill(text);
  } catch (const std::string&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<CaptureCase> read_captures(std::string_view text) {
  std::vector<CaptureCase> captures;
  for (const std::string_view part : split(text, ';')) {
    const std::string_view item = trimmed(part);
    const std::size_t colon = item.find(':');
    const std::size_t open = item.find('[');
    const std::size_t close = item.find(']');
    if (colon > open || open > close || close == std::string_view::npos) throw std::string(kHelp);
    CaptureCase capture;
    capture.name = trimmed(item.substr(0, colon));
    const DType* type = find(kTypes, trimmed(item.substr(colon + 1, open - colon - 1)));
    if (type == nullptr) throw std::string(kHelp);
    capture.dtype = *type;
    for (const std::string_view size : split(item.substr(open + 1, close - open - 1), ',')) {
      capture.sizes.emplace_back(trimmed(size));
    }
    if (capture.sizes.size() > 4) throw std::string("at most 4 axes");
    const std::string_view rest = trimmed(item.substr(close + 1));
    if (!rest.empty() && rest.front() != '=') throw std::string(kHelp);
    if (!rest.empty()) capture.content = trimmed(rest.substr(1));
    captures.push_back(std::move(capture));
  }
  if (captures.size() > kMaxCaptures) {
    throw "at most " + std::to_string(kMaxCaptures) + " captured tensors";
  }
  return captures;
}

std::string captures_text(const std::vector<CaptureCase>& captures) {
  std::string text;
  for (const CaptureCase& capture : captures) {
    text += (text.empty() ? "" : "; ") + capture.name + ":" +
            std::string(name(kTypes, capture.dtype)) + "[";
    for (std::size_t n = 0; n < capture.sizes.size(); ++n) {
      text += (n > 0 ? "," : "") + capture.sizes[n];
    }
    text += "]" + (capture.content.empty() ? "" : "=" + capture.content);
  }
  return text;
}

std::vector<std::int64_t> capture_sizes(const Case& c, const CaptureCase& capture) {
  std::vector<std::int64_t> sizes;
  for (const std::string& text : capture.sizes) {
    const Expression size = formula(c, text);
    const expression::Program& program = *expression::lower(size).program();
    const expression::Node& node = program.nodes[static_cast<std::size_t>(program.result)];
    if (node.op != expression::Op::constant || node.type != expression::Type::integer ||
        node.integer < 1) {
      throw InvalidArgument("case: captures= size '" + text + "' of " + capture.name +
                            " is not an integer above 0");
    }
    sizes.push_back(node.integer);
  }
  return sizes;
}

std::vector<double> capture_values(const Case& c, const CaptureCase& capture,
                                   const std::vector<std::int64_t>& sizes, std::uint64_t seed) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  std::vector<double> values(static_cast<std::size_t>(count));
  const std::string content = !capture.content.empty()     ? capture.content
                              : is_floating(capture.dtype) ? "randn"
                                                           : "rand*2";
  std::uint32_t part = 0;  // each name draws numbers of its own
  for (const char letter : capture.name) part = part * 31 + static_cast<std::uint8_t>(letter);
  Random random(seed, Stream::captures, part);
  const std::optional<Fill> fill = fill_of(content);
  std::optional<expression::Function> function;
  std::optional<expression::Interpreter> interpreter;
  if (!fill) {
    function = expression::function_of(expression::as_real(formula(c, content)));
    interpreter.emplace(*function->program, function->captures);
  }
  for (std::int64_t n = 0; n < count; ++n) {
    std::array<std::int64_t, 4> index{};  // the last axes of (b, h, i, j)
    std::int64_t rest = n;
    for (std::size_t axis = sizes.size(); axis-- > 0;) {
      index[axis + 4 - sizes.size()] = rest % sizes[axis];
      rest /= sizes[axis];
    }
    double& value = values[static_cast<std::size_t>(n)];
    if (fill) {
      value = fill_value(*fill, random, index[1], index[2], index[3], n);
    } else {
      interpreter->turn_to({.b = index[0], .h = index[1], .i = index[2], .j = index[3]});
      value = interpreter->real(function->program->result);
    }
    // A random number below 8 as an integer is 0 to 7.
    if (!is_floating(capture.dtype)) value = std::floor(value);
    if (capture.dtype == DType::boolean) value = value != 0.0 ? 1.0 : 0.0;
  }
  return values;
}

}  // namespace tilewise
