/// A few rows in groups that a register tile takes. In an unnamed namespace, as in micro_impl.h.
#pragma once

namespace tilewise::cpu {
namespace {

template <int R>
struct RowGroup {};

/// tile(RowGroup<R>, first row) for all rows: four at a time, then the rest.
template <class Tile>
inline void for_row_groups(int rows, const Tile& tile) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) tile(RowGroup<4>{}, r);
  switch (rows - r) {
    case 3:
      return tile(RowGroup<3>{}, r);
    case 2:
      return tile(RowGroup<2>{}, r);
    case 1:
      return tile(RowGroup<1>{}, r);
    default:
      return;
  }
}

}  // namespace
}  // namespace tilewise::cpu
