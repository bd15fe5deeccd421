#include "cli/layer/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "cli/shell/args.h"
#include "cli/shell/failure.h"
#include "tilewise/tensor.h"

namespace tilewise::cli {
namespace {

using Random = std::mt19937_64;

/// In [0, below).
std::int32_t draw(Random& random, std::int64_t below) {
  return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(below));
}

// --- needle ---

constexpr std::int32_t kNoise = 50, kNeedles = 8, kQuestion = kNoise + kNeedles;

Examples draw_needles(std::int64_t batch, std::int64_t tokens, Random& random) {
  Examples out;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t place = draw(random, std::max<std::int64_t>(1, tokens - tokens / 8));
    out.labels.push_back(draw(random, kNeedles));
    for (std::int64_t i = 0; i < tokens; ++i) {
      const std::int32_t noise = draw(random, kNoise);
      out.ids.push_back(i == tokens - 1 ? kQuestion
                        : i == place    ? kNoise + out.labels.back()
                                        : noise);
    }
  }
  return out;
}

// --- listops ---

/// Tokens: the digits, then these.
enum ListToken : std::int32_t {
  kMax = 10,
  kMin,
  kMedian,
  kSumModulo,
  kClose,
  kPadding,
  kListTokens
};

constexpr int kMostArguments = 5, kMostDepth = 6;

std::int32_t value_of(std::int32_t operation, std::vector<std::int32_t> arguments) {
  std::sort(arguments.begin(), arguments.end());
  switch (operation) {
    case kMax:
      return arguments.back();
    case kMin:
      return arguments.front();
    case kMedian:
      return arguments[arguments.size() / 2];
    default:
      return std::accumulate(arguments.begin(), arguments.end(), 0) % 10;
  }
}

/// Appends an expression of at most `room` tokens; returns its value.
std::int32_t draw_expression(std::int64_t room, int depth, Random& random,
                             std::vector<std::int32_t>& text) {
  constexpr std::int64_t kLeast = 4;  // an operation, two arguments, the end
  const bool leaf = room < kLeast || depth == 0 || (depth < kMostDepth && draw(random, 2) == 0);
  if (leaf) {
    text.push_back(draw(random, 10));
    return text.back();
  }
  const std::int32_t operation = kMax + draw(random, 4);
  text.push_back(operation);
  room -= 2;
  std::vector<std::int32_t> arguments;
  const int count = 2 + draw(random, kMostArguments - 1);
  for (int n = 0; n < count && (n < 2 || room > 0); ++n) {
    const std::size_t before = text.size();
    const std::int64_t share = std::max<std::int64_t>(1, room / (count - n));
    arguments.push_back(draw_expression(share, depth - 1, random, text));
    room -= static_cast<std::int64_t>(text.size() - before);
  }
  text.push_back(kClose);
  return value_of(operation, std::move(arguments));
}

Examples draw_lists(std::int64_t batch, std::int64_t tokens, Random& random) {
  Examples out;
  for (std::int64_t b = 0; b < batch; ++b) {
    std::vector<std::int32_t> text;
    out.labels.push_back(draw_expression(tokens, kMostDepth, random, text));
    const auto short_of = static_cast<std::size_t>(tokens) - text.size();
    out.ids.insert(out.ids.end(), short_of, kPadding);
    out.ids.insert(out.ids.end(), text.begin(), text.end());
  }
  return out;
}

}  // namespace

const Task& find_task(const std::string& name) {
  static const Task all[] = {{"needle", kQuestion + 1, kNeedles, draw_needles},
                             {"listops", kListTokens, 10, draw_lists}};
  check_one_of("--task", name, {"needle", "listops"});
  return *std::find_if(std::begin(all), std::end(all),
                       [&](const Task& task) { return task.name == name; });
}

void check_tokens(std::int64_t batch, std::int64_t tokens) {
  if (tokens <= Tensor::kMaxElems / batch) return;
  throw BadInput(
      fmt::format("--batch {} of --seq {}: expected at most 2^56 tokens", batch, tokens));
}

}  // namespace tilewise::cli
