#include "cuda/kernels/bwd_sm80/lists.h"

#include "cuda/host/common.h"

namespace tilewise::cuda {
namespace {

std::optional<TileListsMaker> maker(const Problem& p, const bwd_tiles::Tile& tile) {
  if (!has_tile_lists(p)) return std::nullopt;
  return TileListsMaker(p, tile.shape.block_m, tile.shape.block_n, mma_lists(p));
}

}  // namespace

std::string lists_refusal(const Problem& p, const Hardware& machine) {
  return p.block_list.defined() ? tile_lists_refusal(p, machine.shared_kib) : std::string();
}

ListsInTiles::ListsInTiles(const Problem& p, const bwd_tiles::Tile& queries)
    : queries_(maker(p, queries)) {}

ListsInTiles::ListsInTiles(const Problem& p, const bwd_tiles::Tile& keys,
                           const bwd_tiles::Tile& queries)
    : keys_(maker(p, keys)), queries_(maker(p, queries)) {}

void ListsInTiles::add_memory(std::vector<MemoryPart>& items) const {
  if (queries_) queries_->add_memory(items);
  if (!keys_) return;
  keys_->add_memory(items);
  keys_->add_transposed_memory(items);
}

void ListsInTiles::make(WorkspaceCutter& workspace, void* stream) {
  if (queries_) {
    queries_->take(workspace);
    queries_->make(stream);
  }
  if (!keys_) return;
  keys_->take(workspace);
  keys_->take_transposed(workspace);
  keys_->make(stream);
  keys_->transpose(stream);
}

/// The transposition overlaps what it transposes.
double ListsInTiles::ms() const {
  return host::kKernelMs * ((queries_ ? 1.0 : 0.0) + (keys_ ? 1.0 : 0.0));
}

}  // namespace tilewise::cuda
