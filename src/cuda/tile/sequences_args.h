/// Packed sequences and paged keys as host and device both know them. Nothing is included.
#pragma once

namespace tilewise::tile {

/// Packed sequences along the rows of a tensor. What lies behind the last offset counts as one more
/// sequence.
struct Sequences {
  const void* offsets = nullptr;  ///< (count + 1), int32 or int64
  long long stride = 1;
  bool wide = false;  ///< int64
  int count = 0;
  int rows = 0;  ///< of the tensor
};

/// Key j of entry b is row j % size of page table[b, j / size] of the pools.
struct Pages {
  const int* table = nullptr;  ///< (B, pages)
  long long table_b = 0, table_p = 0;
  int size = 1;
  /// j / size = j * multiplier >> shift, for j below 2^29.
  unsigned multiplier = 1U << 29;
  int shift = 29;
};

}  // namespace tilewise::tile
