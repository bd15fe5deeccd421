/// Offsets of packed sequences, as host and device both know them. Nothing is included.
#pragma once

namespace tilewise::tile {

/// Offsets of packed sequences, int32 or int64.
///
/// NOTE: maps of sequences whose lengths only the device knows. A row axis ends where the tensor
/// ends, but zeros must begin, and writing stop, where the sequence does. So such a map has its row
/// axis twice: x, of N rows (no sequence is longer), and y, as long as needed, both with the row's
/// stride, from N rows before the tensor on. Row i of a sequence of n rows that begins at row b has
/// x = N - n + i, y = n + b: it lies inside of x iff i < n.
struct Offsets {
  const void* data = nullptr;
  long long stride = 1;
  bool wide = false;
};

}  // namespace tilewise::tile
