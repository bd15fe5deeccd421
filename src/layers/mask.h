/// The published patterns as masks: as published, O(n^2) memory.
#pragma once

#include <cstdint>
#include <vector>

#include "tilewise/asam.h"

namespace tilewise::asam {

/// Sizes of the hierarchical pattern's strided patterns.
inline constexpr std::int64_t kScales[] = {4, 16, 64};

/// Heads of a pattern's mask: 1 where all heads share it.
std::int64_t mask_heads(const Config& config);

/// 1 where row i sees key j: (mask_heads, tokens, tokens). Not for clustered, which the tokens
/// decide. scale_weights (3, heads): the hierarchical pattern's parameter.
std::vector<std::uint8_t> pattern_mask(const Config& config, std::int64_t tokens,
                                       const std::vector<float>& scale_weights);

}  // namespace tilewise::asam
