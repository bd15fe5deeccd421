/// Order of a persistent kernel's tiles.
#pragma once

namespace tilewise::tile {

/// Order of the tiles: all row blocks of a section of heads, then the next section. `sections`
/// sections of `section_heads` heads, then sections of `last_heads`. Inside a section the last row
/// block (the longest under a causal mask) of all its heads comes first. Chosen by
/// host/tile_order.h.
struct SectionOrder {
  int blocks = 1;  ///< row blocks of a head
  int heads = 1;   ///< batch * query heads * splits
  int sections = 0, section_heads = 1, last_heads = 1;
};

}  // namespace tilewise::tile
