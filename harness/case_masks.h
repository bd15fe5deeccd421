/// Masks, biases and block lists of a case. Used by materialize.cpp only.
#pragma once

#include <vector>

#include "harness/case_buffers.h"
#include "harness/case_values.h"

namespace tilewise {

/// Sequence and local index of every query row, and key lengths: what regions are relative to.
struct CaseRows {
  struct Row {
    std::int64_t sequence = -1;  ///< -1 = past the last packed sequence
    std::int64_t i = 0;
  };
  std::vector<Row> packed_rows;           ///< packed only
  std::vector<std::int64_t> key_lengths;  ///< of each sequence
  std::int64_t max_k = 0;

  explicit CaseRows(const Case& c);
  Row row(std::int64_t b, std::int64_t i) const {
    return packed_rows.empty() ? Row{b, i} : packed_rows[static_cast<std::size_t>(i)];
  }
};

/// Sizes and placement of a mask or bias; packed ones have three axes.
struct PairShape {
  int rank = 4;
  Sizes sizes{};
  Placement placement;
  Tensor view(void* data, DType dtype, Device device) const;
};
PairShape pair_shape(const Case& c, const Axes& axes, View view);

/// Fill tensors on the host.
void fill_mask(const Tensor& tensor, const Case& c, std::uint64_t seed);
void fill_bias(const Tensor& tensor, const Case& c, std::uint64_t seed);

/// A block list as vectors; offsets has the shape (B|1, Hq|1, query_blocks + 1).
struct BlockArrays {
  std::int64_t batch = 1, heads = 1, query_blocks = 0;
  std::vector<std::int32_t> offsets, index;
  std::vector<std::uint8_t> full;
};
BlockArrays make_blocks(const Case& c, std::uint64_t seed);

}  // namespace tilewise
