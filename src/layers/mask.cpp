#include "layers/mask.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "problem/philox.h"

namespace tilewise::asam {
namespace {

/// Keys of a row of the random pattern.
constexpr std::int64_t kRandomKeys = 128;
/// Either side of a row that the strided pattern sees whole.
constexpr std::int64_t kStridedReach = 16;

bool strided(std::int64_t i, std::int64_t j, std::int64_t stride, std::int64_t reach) {
  return std::abs(i - j) <= reach || j % stride == 0;
}

/// The keys at most `reach` from row i, as a run.
void fill_near(std::int64_t i, std::int64_t reach, std::int64_t tokens, std::uint8_t* row) {
  const std::int64_t begin = std::max<std::int64_t>(0, i - reach);
  std::fill(row + begin, row + std::min(tokens, i + reach + 1), std::uint8_t{1});
}

/// kRandomKeys of the row's keys: the first of a shuffle that head and row decide.
void draw_row(std::int64_t head, std::int64_t i, std::int64_t tokens, std::uint8_t* row) {
  constexpr std::uint64_t kFirstSeed = 42;  // as published
  const DropoutMask random({.p = 0.0, .seed = kFirstSeed + static_cast<std::uint64_t>(head)});
  std::vector<std::int64_t> keys(static_cast<std::size_t>(tokens));
  std::iota(keys.begin(), keys.end(), 0);
  for (std::int64_t n = 0; n < std::min(tokens, kRandomKeys); ++n) {
    const std::uint64_t word = random.words(head, i, n)[0];
    const auto left = static_cast<std::uint64_t>(tokens - n);
    const std::int64_t other = n + static_cast<std::int64_t>(word * left >> 32);
    std::swap(keys[static_cast<std::size_t>(n)], keys[static_cast<std::size_t>(other)]);
    row[keys[static_cast<std::size_t>(n)]] = 1;
  }
}

/// softmax over the scales of a head's weights.
std::array<float, 3> votes_of(const std::vector<float>& weights, std::int64_t heads,
                              std::int64_t head) {
  std::array<float, 3> votes{};
  float sum = 0.0F;
  for (std::size_t s = 0; s < votes.size(); ++s) {
    sum += votes[s] =
        std::exp(weights[s * static_cast<std::size_t>(heads) + static_cast<std::size_t>(head)]);
  }
  for (float& vote : votes) vote /= sum;
  return votes;
}

}  // namespace

std::int64_t mask_heads(const Config& config) {
  const bool by_head = config.pattern == Pattern::random || config.pattern == Pattern::hierarchical;
  return by_head ? config.heads : 1;
}

std::vector<std::uint8_t> pattern_mask(const Config& config, std::int64_t tokens,
                                       const std::vector<float>& scale_weights) {
  const std::int64_t heads = mask_heads(config);
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(heads * tokens * tokens));
  for (std::int64_t head = 0; head < heads; ++head) {
    std::array<float, 3> votes{};
    if (config.pattern == Pattern::hierarchical) {
      votes = votes_of(scale_weights, config.heads, head);
    }
    for (std::int64_t i = 0; i < tokens; ++i) {
      std::uint8_t* row = mask.data() + (head * tokens + i) * tokens;
      if (config.pattern == Pattern::random) {
        draw_row(head, i, tokens, row);
        continue;
      }
      if (config.pattern != Pattern::hierarchical) {
        const bool local = config.pattern == Pattern::local;
        fill_near(i, local ? config.window_size / 2 : kStridedReach, tokens, row);
        for (std::int64_t j = 0; !local && j < tokens; j += config.stride) row[j] = 1;
        continue;
      }
      for (std::int64_t j = 0; j < tokens; ++j) {
        float vote = 0.0F;
        for (std::size_t s = 0; s < votes.size(); ++s) {
          if (strided(i, j, kScales[s], kScales[s] / 4)) vote += votes[s];
        }
        row[j] = vote > 0.5F ? 1 : 0;
      }
    }
  }
  return mask;
}

}  // namespace tilewise::asam
