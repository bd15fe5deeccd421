/// From a mask to the blocks of pairs that it leaves: a block list that nobody wrote.
#pragma once

#include <cstdint>
#include <vector>

#include "expression/program.h"
#include "problem/problem.h"

namespace tilewise::expression {

/// Rows and keys of a block where nobody asks for others.
inline constexpr std::int64_t kMapBlock = 64;

/// A block list with its memory.
struct BlockMap {
  std::int64_t batch = 1, heads = 1, query_blocks = 0;  ///< axes of row_offsets; 1: for all
  std::int64_t block_q = 0, block_k = 0;
  std::vector<std::int32_t> row_offsets, block_index;
  std::vector<std::uint8_t> block_full;  ///< no mask, position or length hides a pair

  /// Views, for as long as the map stays where it is.
  BlockList list() const;
};

/// The blocks in which some pair is visible by `mask` (a boolean), position, length and the
/// problem's own list, whose block sizes must then be these. Exact: a block is listed only if a
/// pair is visible, and full if all are. Boxes of blocks are looked at first, so that the time
/// grows with the border of what is visible. Lengths and captured tensors are in host memory. A
/// problem's bool mask is not looked at: beside one no block is full, unless the problem's own list
/// says so. Throws OutOfMemory past 2^31 entries.
BlockMap make_block_map(const Problem& problem, const Function& mask, std::int64_t block_q,
                        std::int64_t block_k);

/// True when heads may see other pairs than each other.
bool differs_by_head(const Function& mask);

/// Pairs of all batch entries and heads in the blocks of kMapBlock that a problem's mask expression
/// leaves: what tiled kernels work out. -1 where telling takes more than a fraction of a second.
double count_mapped_pairs(const Problem& problem);

}  // namespace tilewise::expression
