/// Block lists on the host.
#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace tilewise {

/// One row of a list: the key blocks that a query block of a head lists.
class ListedBlocks {
 public:
  /// The blocks of a Problem's list. Its broadcast axes have stride 0.
  ListedBlocks(const BlockList& list, std::int64_t b, std::int64_t h, std::int64_t query_block)
      : index_(static_cast<const std::int32_t*>(list.block_index.data)),
        full_(static_cast<const std::uint8_t*>(list.block_full.data)),
        index_stride_(list.block_index.strides[0]),
        full_stride_(list.block_full.strides[0]) {
    const Tensor& offsets = list.row_offsets;
    const std::int32_t* at = static_cast<const std::int32_t*>(offsets.data) +
                             b * offsets.strides[0] + h * offsets.strides[1] +
                             query_block * offsets.strides[2];
    begin_ = at[0];
    count_ = at[offsets.strides[2]] - begin_;
  }

  std::int64_t count() const { return count_; }
  /// Ascends with n.
  std::int64_t block(std::int64_t n) const { return index_[(begin_ + n) * index_stride_]; }
  bool full(std::int64_t n) const {
    return full_ != nullptr && full_[(begin_ + n) * full_stride_] != 0;
  }
  /// The first n whose block is at least `block`; count() if there is none.
  std::int64_t first_from(std::int64_t block) const {
    std::int64_t low = 0;
    std::int64_t high = count_;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (this->block(middle) < block) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

 private:
  const std::int32_t* index_;
  const std::uint8_t* full_;
  std::int64_t index_stride_, full_stride_;
  std::int64_t begin_ = 0, count_ = 0;
};

/// (query, key) pairs of all batch entries and heads that list, position and length leave visible;
/// -1 when the list or the lengths cannot be read here.
double count_listed_pairs(const Problem& problem);

}  // namespace tilewise
