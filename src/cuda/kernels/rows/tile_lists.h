/// tile_lists on the host: the caller's block list as rows of tiles. See rows/tile_lists.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/jit/unit.h"
#include "cuda/kernels/rows/mask_tiles_args.h"
#include "cuda/kernels/rows/tile_lists_args.h"
#include "cuda/tile/lists_args.h"
#include "cuda/tile/options_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// True where kernels of tiles have a list: the caller's, or what a mask function leaves.
bool has_tile_lists(const Problem& problem);

/// Why a list's blocks do not go with tiles on a machine with `shared_kib` of shared memory for a
/// block; empty when they do.
std::string tile_lists_refusal(const Problem& problem, std::int64_t shared_kib = 128);

/// How a list's blocks and a tile of a kernel for Hopper go together.
tile::Lists tile_lists_kind(const Problem& problem, int tile_q, int tile_k);

/// The same for the kernels on mma.sync, which take any list bit by bit.
tile::Lists mma_lists(const Problem& problem);

/// Pairs of queries and keys that can be listed at most, in all heads: the host knows the length of
/// block_index alone.
double listed_pairs(const Problem& problem);

/// Whether rows of tiles lose what the bits of the bool mask hide, and what the bits' lines are.
/// Then a tile that is seen whole needs no look at the mask.
enum class MaskLines { none, queries, keys };

/// The rows of tiles of a problem's list, of its mask function, or of its bool mask. The problem
/// outlives it.
class TileListsMaker {
 public:
  /// `kind`: parts also where blocks are whole tiles keeps their bits. `rows_of_tile`: rows of
  /// tile_q queries that order() hands out together. `packs_heads`: a tile has the query heads of a
  /// group, which share their list. `lines` counts where there is a bool mask.
  TileListsMaker(const Problem& problem, int tile_q, int tile_k, tile::Lists kind,
                 int rows_of_tile = 1, bool packs_heads = false, MaskLines lines = MaskLines::none);
  void add_memory(std::vector<MemoryPart>& items) const;
  /// Takes the workspace of add_memory() and fills in where everything lies.
  void take(WorkspaceCutter& workspace);
  /// What tile_lists.cuh takes, what a kernel of tiles reads; after take().
  const tile_lists::Args& args() const { return args_; }
  const tile_lists::Config& config() const { return config_; }
  std::int64_t blocks() const { return lists_ * args_.rows; }  ///< of the grid
  tile::TileLists lists() const;
  /// Starts tile_lists or mask_map, and with lines of queries mask_tiles. The next kernel may start
  /// before the last of them ends and waits by wait_for_previous().
  void make(void* stream, const tile::MaskBits& mask = {}) const;

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
  /// Both ways with lines of keys, instead of make() and transpose(), where lists() is up to date
  /// only if `both`. The same.
  void make_by_keys(void* stream, const tile::MaskBits& mask, bool both) const;

  // What mask_tiles.cuh takes.
  mask_tiles::Args mask_args(const tile::MaskBits& mask) const;
  mask_tiles::Config mask_config() const;
  /// Whether another kernel makes the rows that it narrows.
  bool lists_ahead() const;
  std::int64_t mask_blocks() const;
  /// Rows of queries from those of keys.
  tile_lists::TransposeArgs way_back_args() const;
  std::int64_t way_back_blocks() const { return lists_ * transpose_.to_words; }

 private:
  const Problem& problem_;
  tile_lists::Config config_;
  tile_lists::Args args_;
  tile_lists::TransposeArgs transpose_;
  tile_lists::OrderArgs order_;
  std::int64_t lists_ = 1;
  int list_b_ = 0, list_h_ = 0;
  int sharing_ = 1, heads_ = 1;
  MaskLines lines_ = MaskLines::none;

  void take_list();
  void make_rows(void* stream) const;
  void narrow(void* stream, const tile::MaskBits& mask) const;
  void start_transpose(const tile_lists::TransposeArgs& args, std::int64_t blocks,
                       void* stream) const;
  std::int64_t bit_words() const;
  std::int64_t listed_words() const;
};

}  // namespace tilewise::cuda
