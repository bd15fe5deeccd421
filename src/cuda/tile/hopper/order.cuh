/// What kernels on Hopper share of the order of their tiles and of their masks.
#pragma once

#include "cuda/tile/mask_args.h"
#include "cuda/tile/order.cuh"
#include "cuda/tile/order_args.h"

namespace tilewise::tile {

/// A row block and a head (of the whole batch, with its parts).
struct OrderedTile {
  int block, bh;
};

/// Tile `index` of an order (host/tile_order.h): inside a section the last block first, heads
/// fastest.
__forceinline__ OrderedTile ordered_tile(const SectionOrder& order, int index) {
  const int first_tiles = order.sections * order.section_heads * order.blocks;
  const bool last = index >= first_tiles;
  const int heads = last ? order.last_heads : order.section_heads;
  const int from = last ? index - first_tiles : index;
  const int section = from / (heads * order.blocks);
  const int rest = from - section * heads * order.blocks;
  const int head0 = (last ? order.sections * order.section_heads : 0) + section * heads;
  const int here = min(heads, order.heads - head0);
  return {order.blocks - 1 - rest / here, head0 + rest % here};
}

/// Row i sees the keys j with i + low <= j < i + high.
template <Mask kMask>
__forceinline__ Diagonals mask_diagonals(int low, int high) {
  Diagonals d(Positions{}, 0, 0);
  // A constant where nothing is hidden on the left: the ranges fold to a few instructions.
  d.low = kMask == Mask::both ? low : -Positions::kFar;
  d.high = kMask == Mask::none ? Positions::kFar : high;
  return d;
}

}  // namespace tilewise::tile
