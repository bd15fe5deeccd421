/// The windows of a sequence that make the gates' features.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "problem/blocks.h"

namespace tilewise::asam {

/// Windows of the working gate, in tokens; and its features for each feature of a token.
inline constexpr std::array<std::int64_t, 3> kPoolWindows = {1, 8, 64};
inline constexpr std::int64_t kWindowFeatures = 1 + 2 * kPoolWindows.size();

/// The published gate's: dim, dim / 2, dim / 4 and dim / 8 bins.
inline constexpr int kPoolScales = 4;
constexpr std::int64_t bins_at(std::int64_t dim, int scale) {
  return std::max<std::int64_t>(1, dim >> scale);
}
constexpr std::int64_t pool_bin_count(std::int64_t dim) {
  std::int64_t count = 0;
  for (int scale = 0; scale < kPoolScales; ++scale) count += bins_at(dim, scale);
  return count;
}

/// Tokens [begin, end) of a bin.
struct Bin {
  std::int64_t begin, end;
};
/// All bins of a sequence, as torch's adaptive average pooling cuts it: they may overlap.
inline std::vector<Bin> pool_bins_of(std::int64_t dim, std::int64_t tokens) {
  std::vector<Bin> bins;
  for (int scale = 0; scale < kPoolScales; ++scale) {
    const std::int64_t count = bins_at(dim, scale);
    for (std::int64_t i = 0; i < count; ++i) {
      bins.push_back({i * tokens / count, ceil_div((i + 1) * tokens, count)});
    }
  }
  return bins;
}

}  // namespace tilewise::asam
