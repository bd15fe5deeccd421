/// The counter that hands out tiles, as host and device both know it. Nothing is included.
#pragma once

namespace tilewise::tile {

/// 8 bytes of workspace with any content. A launch knows its own counts by `tag`.
struct TileCounter {
  unsigned long long* word = nullptr;
  unsigned long long tag = 0;  ///< 40 bits, never 0
  static constexpr int kCountBits = 24;
};

}  // namespace tilewise::tile
