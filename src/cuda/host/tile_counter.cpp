#include "cuda/host/tile_counter.h"

#include <atomic>

namespace tilewise::cuda::host {
namespace {

/// A number that no other launch of this process and hardly any other memory has: see TileCounter.
unsigned long long next_tag() {
  static std::atomic<unsigned long long> launches{0};
  unsigned long long x =
      (launches.fetch_add(1, std::memory_order_relaxed) + 1) * 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return (x ^ (x >> 31)) >> tile::TileCounter::kCountBits | 1;
}

}  // namespace

MemoryPart tile_counter_memory() {
  return memory_part("tile counter", MemoryItem::Role::workspace, DType::int64, {1});
}

tile::TileCounter take_tile_counter(WorkspaceCutter& workspace, std::int64_t words) {
  return {workspace.take<unsigned long long>(words), next_tag()};
}

}  // namespace tilewise::cuda::host
