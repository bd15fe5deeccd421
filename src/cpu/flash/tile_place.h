/// The place of a tile of scores.
#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace tilewise::cpu {

/// Rows i0 .. i0 + rows - 1 and keys j0 .. j0 + cols - 1 of query head h of sequence b. Element
/// (r, c) of a buffer of the tile is at r * ld + c.
struct TilePlace {
  const Sequence& sequence;
  std::int64_t b = 0, h = 0;
  std::int64_t i0 = 0, j0 = 0;
  int rows = 0, cols = 0;
  std::int64_t ld = 0;
};

}  // namespace tilewise::cpu
