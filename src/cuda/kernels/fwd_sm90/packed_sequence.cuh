/// Packed sequences on the device: from a row, or a block of rows, to its sequence.
#pragma once

#include "cuda/kernels/fwd_sm90/args.h"
#include "cuda/tile/math.cuh"

namespace tilewise {

__forceinline__ int offset_at(const fwd_sm90::Offsets& offsets, int index) {
  const tile::i64 at = index * offsets.stride;
  return offsets.wide ? static_cast<int>(static_cast<const tile::i64*>(offsets.data)[at])
                      : static_cast<const int*>(offsets.data)[at];
}

/// The last sequence that begins at or before `block`; `sequences`: what lies behind all. With
/// blocks of `rows` rows sequence b begins at its first row / rows + b, else at its first row.
__forceinline__ int last_not_after(const fwd_sm90::Offsets& offsets, int sequences, int block,
                                   int rows = 0) {
  int low = 0, high = sequences;
  while (low < high) {
    const int middle = (low + high + 1) / 2, row = offset_at(offsets, middle);
    if ((rows > 0 ? row / rows + middle : row) <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace tilewise
