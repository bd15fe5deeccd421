/// The patterns that the working layer chooses among, in numbers that both devices share.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "problem/blocks.h"
#include "tilewise/asam.h"

namespace tilewise::asam {

/// In the order of their logits.
inline constexpr std::array kChoicePatterns = {Pattern::local, Pattern::strided, Pattern::clustered,
                                               Pattern::hierarchical, Pattern::selected};
inline constexpr std::int64_t kChoices = kChoicePatterns.size();

inline int choice_number(Pattern pattern) {
  return static_cast<int>(std::find(kChoicePatterns.begin(), kChoicePatterns.end(), pattern) -
                          kChoicePatterns.begin());
}

/// Blocks either side that local sees.
inline std::int64_t local_reach(const Config& c) {
  return ceil_div(c.window_size / 2, c.block_size);
}
/// strided sees one block of so many, beside the neighbours.
inline std::int64_t strided_every(const Config& c) {
  return std::max<std::int64_t>(2, c.stride / c.block_size);
}
/// Blocks of `blocks` that selected keeps in a row; halves go to the even number.
inline std::int64_t selected_blocks(const Config& c, std::int64_t blocks) {
  const double share = std::nearbyint(c.density * static_cast<double>(blocks));
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(share));
}

}  // namespace tilewise::asam
