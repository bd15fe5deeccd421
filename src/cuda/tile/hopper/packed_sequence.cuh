/// Packed sequences on the device: from a row, or a block of rows, to its sequence.
#pragma once

#include "cuda/tile/hopper/offsets_args.h"
#include "cuda/tile/math.cuh"

namespace tilewise::tile {

__forceinline__ int offset_at(const Offsets& offsets, int index) {
  const i64 at = index * offsets.stride;
  return offsets.wide ? static_cast<int>(static_cast<const i64*>(offsets.data)[at])
                      : static_cast<const int*>(offsets.data)[at];
}

/// Sequence `index`'s first block of `rows` rows, at most one more than those before have; of 0
/// rows its first row.
__forceinline__ int first_block(const Offsets& offsets, int index, int rows) {
  const int row = offset_at(offsets, index);
  return rows > 0 ? row / rows + index : row;
}

/// The last sequence that begins at or before `block`; `sequences`: what lies behind all.
template <class Offsets>
__forceinline__ int last_not_after(const Offsets& offsets, int sequences, int block, int rows = 0) {
  int low = 0, high = sequences;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first_block(offsets, middle, rows) <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace tilewise::tile
