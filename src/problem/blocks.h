/// Whole blocks that cover a length: the one rounded-up division on the host.
#pragma once

#include <cstdint>

namespace tilewise {

/// Blocks of `block` >= 1 elements that cover `length` >= 0. No sum on the way: right for any block
/// size that an int64 holds.
constexpr std::int64_t ceil_div(std::int64_t length, std::int64_t block) {
  return length / block + (length % block != 0 ? 1 : 0);
}

/// `length` >= 0 filled up to whole blocks; the result has to fit an int64.
constexpr std::int64_t round_up(std::int64_t length, std::int64_t block) {
  return ceil_div(length, block) * block;
}

}  // namespace tilewise
