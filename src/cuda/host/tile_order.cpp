#include "cuda/host/tile_order.h"

#include <algorithm>

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

tile::SectionOrder section_order(const OrderProblem& problem) {
  tile::SectionOrder order;
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

}  // namespace tilewise::cuda
