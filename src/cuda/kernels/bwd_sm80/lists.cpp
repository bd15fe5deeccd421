#include "cuda/kernels/bwd_sm80/lists.h"

#include "cuda/host/common.h"
#include "cuda/kernels/tile_lists/kinds.h"

namespace tilewise::cuda {
namespace {

WantedLists wanted(const Problem& p, const bwd_tiles::Tile& tile, bool by_keys) {
  return {.tile_q = tile.shape.block_m,
          .tile_k = tile.shape.block_n,
          .kind = mma_lists(p),
          .by_keys = by_keys};
}

}  // namespace

ListsInTiles::ListsInTiles(const Problem& p, const bwd_tiles::Tile& queries)
    : queries_(p, wanted(p, queries, false)), defined_(has_tile_lists(p)) {}

ListsInTiles::ListsInTiles(const Problem& p, const bwd_tiles::Tile& keys,
                           const bwd_tiles::Tile& queries)
    : ListsInTiles(p, queries) {
  if (defined_) keys_.emplace(p, wanted(p, keys, true));
}

void ListsInTiles::add_memory(std::vector<MemoryPart>& items) const {
  queries_.add_memory(items);
  if (keys_) keys_->add_memory(items);
}

void ListsInTiles::make(WorkspaceCutter& workspace, void* stream) {
  queries_.take(workspace);
  queries_.make(stream);
  if (!keys_) return;
  keys_->take(workspace);
  keys_->make(stream);
}

/// The transposition overlaps what it transposes.
double ListsInTiles::ms() const {
  return host::kKernelMs * ((defined_ ? 1.0 : 0.0) + (keys_ ? 1.0 : 0.0));
}

}  // namespace tilewise::cuda
