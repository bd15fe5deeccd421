/// A problem's block list, or what its mask function leaves, in the tiles of the backward on
/// mma.sync. Used by bwd_sm80/row.cpp.
#pragma once

#include <optional>
#include <vector>

#include "cuda/kernels/bwd_sm80/tiles.h"
#include "cuda/kernels/tile_lists/maker.h"

namespace tilewise::cuda {

/// In the tiles of bwd_sm80, which walks over queries, and in those of bwd_dq_sm80 (refine, the
/// gradients of bias and captured tensors). Nothing for a problem without a list.
class ListsInTiles {
 public:
  ListsInTiles(const Problem& p, const bwd_tiles::Tile& queries);
  ListsInTiles(const Problem& p, const bwd_tiles::Tile& keys, const bwd_tiles::Tile& queries);
  void add_memory(std::vector<MemoryPart>& items) const;
  /// Takes the workspace of add_memory() and starts the kernels. What follows on the stream waits
  /// for them.
  void make(WorkspaceCutter& workspace, void* stream);
  tile::TileLists of_keys() const { return keys_ ? keys_->of_keys() : tile::TileLists(); }
  tile::TileLists of_queries() const { return queries_.of_queries(); }
  double ms() const;

 private:
  std::optional<TileListsMaker> keys_;
  TileListsMaker queries_;
  bool defined_;
};

}  // namespace tilewise::cuda
