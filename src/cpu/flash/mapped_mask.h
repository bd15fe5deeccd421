/// A mask expression as a block list: the tiled kernels skip the blocks that it hides, and evaluate
/// it on those that it cuts.
#pragma once

#include <optional>

#include "expression/block_map.h"
#include "problem/problem.h"

namespace tilewise::cpu {

/// `p`, or where it has a mask expression and no list: with the block sizes of the list that it
/// will have. For what is decided ahead.
Problem with_map_sizes(const Problem& p);

/// A problem and, where it has a mask expression, the list made of it.
class MappedMask {
 public:
  explicit MappedMask(const Problem& problem);
  MappedMask(const MappedMask&) = delete;
  MappedMask& operator=(const MappedMask&) = delete;

  const Problem& problem() const { return mapped_ ? *mapped_ : given_; }

 private:
  const Problem& given_;
  expression::BlockMap map_;
  std::optional<Problem> mapped_;
};

}  // namespace tilewise::cpu
