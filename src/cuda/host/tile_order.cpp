#include "cuda/host/tile_order.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

namespace tilewise::cuda {
namespace {

/// Heads of a section: a power of two of key heads, so that sections of a batch fall on its heads
/// alike.
std::int64_t heads_in(std::int64_t bytes, std::int64_t tiles, const OrderProblem& problem) {
  const std::int64_t kv_heads = std::max<std::int64_t>(1, problem.heads / problem.heads_per_kv);
  const std::int64_t fit =
      std::clamp<std::int64_t>(bytes / std::max<std::int64_t>(1, problem.kv_bytes), 1, kv_heads);
  const std::int64_t of_head = std::max<std::int64_t>(1, problem.blocks * problem.heads_per_kv);
  std::int64_t power = 1;
  while (power * 2 <= fit || (power * of_head < tiles && power < kv_heads)) power *= 2;
  return power * problem.heads_per_kv;
}

}  // namespace

fwd_sm90::SectionOrder section_order(const OrderProblem& problem) {
  fwd_sm90::SectionOrder order;
  order.blocks = static_cast<int>(problem.blocks);
  order.heads = static_cast<int>(problem.heads);
  if (problem.section_bytes == 0) {
    order.sections = 0;
    order.section_heads = 1;
    order.last_heads = 1;
    return order;
  }
  const std::int64_t section = heads_in(problem.section_bytes, 0, problem);
  const std::int64_t last = std::min(
      problem.heads, std::max(section, heads_in(problem.last_bytes, problem.last_tiles, problem)));
  const std::int64_t sections = (problem.heads - last) / section;
  order.section_heads = static_cast<int>(section);
  order.sections = static_cast<int>(sections);
  order.last_heads = static_cast<int>(problem.heads - sections * section);
  return order;
}

OrderedTile ordered_tile(const fwd_sm90::SectionOrder& order, std::int64_t index) {
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

double tail_ratio(const fwd_sm90::SectionOrder& order, int multiprocessors, double fixed,
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
