/// Blocks of pairs that a kernel computes whole where position cuts some of them.
#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace tilewise::cuda::host {

/// Whether the blocks of a head are few and its last ones not full, so that each one counts: under
/// a causal mask or window, with lengths that are known.
bool counts_cut_blocks(const Problem& problem, std::int64_t block_m, std::int64_t block_n);

/// Blocks of `block_m` queries x `block_n` keys of a head that position does not hide: of all
/// tiles, and of the one with most.
struct SeenBlocks {
  std::int64_t sum = 0, most = 0;
};
SeenBlocks seen_blocks(const Problem& problem, std::int64_t block_m, std::int64_t block_n);

}  // namespace tilewise::cuda::host
