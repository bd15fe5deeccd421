/// tile_lists on the host: the caller's block list as rows of tiles. See rows/tile_lists.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/jit/unit.h"
#include "cuda/kernels/rows/tile_lists_args.h"
#include "cuda/tile/lists_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// True where kernels of tiles have a list: the caller's, or what a mask function leaves.
bool has_tile_lists(const Problem& problem);

/// Why a list's blocks do not go with tiles on a machine with `shared_kib` of shared memory for a
/// block; empty when they do.
std::string tile_lists_refusal(const Problem& problem, std::int64_t shared_kib = 128);

/// How a list's blocks and a kernel's tiles go together.
tile::Lists tile_lists_kind(const Problem& problem, int tile_q, int tile_k);

/// The same for the kernels on mma.sync, which take any list bit by bit.
tile::Lists mma_lists(const Problem& problem);

/// Pairs of queries and keys that can be listed at most, in all heads: the host knows the length of
/// block_index alone.
double listed_pairs(const Problem& problem);

/// The rows of tiles of a problem's list, or of its mask function. The problem outlives it.
class TileListsMaker {
 public:
  /// `kind`: parts also where blocks are whole tiles keeps their bits. `rows_of_tile`: rows of
  /// tile_q queries that order() hands out together. `packs_heads`: a tile has the query heads of a
  /// group, which share their list.
  TileListsMaker(const Problem& problem, int tile_q, int tile_k, tile::Lists kind,
                 int rows_of_tile = 1, bool packs_heads = false);
  void add_memory(std::vector<MemoryPart>& items) const;
  /// Takes the workspace of add_memory() and fills in where everything lies.
  void take(WorkspaceCutter& workspace);
  /// What tile_lists.cuh takes, what a kernel of tiles reads; after take().
  const tile_lists::Args& args() const { return args_; }
  const tile_lists::Config& config() const { return config_; }
  std::int64_t blocks() const { return lists_ * args_.rows; }  ///< of the grid
  tile::TileLists lists() const;
  /// Starts tile_lists, or mask_map. The next kernel may start before it ends and waits by
  /// wait_for_previous().
  void make(void* stream) const;

  // The order of rows, longest first.
  void add_order_memory(std::vector<MemoryPart>& items) const;
  void take_order(WorkspaceCutter& workspace);
  const tile_lists::OrderArgs& order_args() const { return order_; }
  /// After make(), the same.
  void order(void* stream) const;

  // The other way round: the tiles of queries that see a tile of keys.
  void add_transposed_memory(std::vector<MemoryPart>& items) const;
  void take_transposed(WorkspaceCutter& workspace);
  const tile_lists::TransposeArgs& transpose_args() const { return transpose_; }
  tile::TileLists transposed() const;
  std::int64_t transpose_blocks() const { return lists_ * args_.words; }
  /// After make(), the same.
  void transpose(void* stream) const;

 private:
  const Problem& problem_;
  tile_lists::Config config_;
  tile_lists::Args args_;
  tile_lists::TransposeArgs transpose_;
  tile_lists::OrderArgs order_;
  std::int64_t lists_ = 1;
  int list_b_ = 0, list_h_ = 0;
  int sharing_ = 1, heads_ = 1;

  void take_list();
  std::int64_t bit_words() const;
  std::int64_t listed_words() const;
};

}  // namespace tilewise::cuda
