/// What a kernel's producer works out of an order, and how long a machine takes for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "cuda/tile/order_args.h"

namespace tilewise::cuda {

/// Tile `index` of an order: what the kernel's producer works out.
struct OrderedTile {
  std::int64_t block = 0, head = 0;
};
inline OrderedTile ordered_tile(const tile::SectionOrder& order, std::int64_t index) {
  const std::int64_t blocks = order.blocks;
  const std::int64_t first_tiles = std::int64_t{order.sections} * order.section_heads * blocks;
  const bool last = index >= first_tiles;
  const std::int64_t heads = last ? order.last_heads : order.section_heads;
  const std::int64_t from = last ? index - first_tiles : index;
  const std::int64_t section = from / (heads * blocks), rest = from % (heads * blocks);
  const std::int64_t head0 =
      (last ? std::int64_t{order.sections} * order.section_heads : 0) + section * heads;
  const std::int64_t here = std::min(heads, order.heads - head0);
  return {blocks - 1 - rest / here, head0 + rest % here};
}

/// The tail model: longest time of a multiprocessor over the mean when tiles are handed out in
/// order, tile of row block b costing fixed + per_block * key_blocks(b). `causal`: key_blocks grows
/// with b, else it is `blocks` for all.
inline double tail_ratio(const tile::SectionOrder& order, int multiprocessors, double fixed,
                         double per_block, bool causal) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int i = 0; i < multiprocessors; ++i) free_at.push(0.0);
  const std::int64_t tiles = std::int64_t{order.blocks} * order.heads;
  double total = 0.0, end = 0.0;
  for (std::int64_t index = 0; index < tiles; ++index) {
    const OrderedTile tile = ordered_tile(order, index);
    const double work =
        fixed + per_block * static_cast<double>(causal ? tile.block + 1 : order.blocks);
    const double done = free_at.top() + work;
    free_at.pop();
    free_at.push(done);
    total += work;
    end = std::max(end, done);
  }
  return total > 0.0 ? end * multiprocessors / total : 1.0;
}

}  // namespace tilewise::cuda
