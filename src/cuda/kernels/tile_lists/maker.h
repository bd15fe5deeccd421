/// tile_lists on the host: makes the rows of tiles that kernels of tiles walk. See README.md.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "cuda/jit/unit.h"
#include "cuda/kernels/tile_lists/args.h"
#include "cuda/tile/lists_args.h"
#include "cuda/tile/options_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// What a kernel of tiles wants.
struct WantedLists {
  int tile_q = 128, tile_k = 128;
  /// parts: also where blocks are whole tiles their bits are kept. none: there are no lists.
  tile::Lists kind = tile::Lists::none;
  bool packs_heads = false;  ///< a tile has the query heads of a group, which share their list
  bool ordered = false;      ///< rows are taken longest first
  int rows_of_tile = 1;      ///< ordered: rows of tile_q queries that are taken together
  bool by_keys = false;      ///< rows of keys, which list tiles of queries
  bool by_both = false;      ///< by_keys: rows of queries too
  int shows_cut = 0;  ///< ordered, of a mask function: cut tiles of a row whose pairs are kept
  bool tells_placed = false;  ///< of a mask function: what position and lengths alone cut
  bool narrowed = false;  ///< by the problem's bool mask, so that what is seen whole needs no look
};

/// A kernel of the room.
struct ListsKernel {
  enum class Work { from_list, from_function, from_mask, transpose, order, cut_bits };
  Work work = Work::from_list;
  tile_lists::Config config = {};  ///< of those that make rows

  bool operator==(const ListsKernel&) const = default;
};
/// What NVRTC compiles; from_function: with the mask function of `problem`.
KernelUnit lists_unit(const Problem& problem, const ListsKernel& kernel);

/// A launch.
struct ListsStep {
  ListsKernel kernel;
  std::int64_t blocks = 0;  ///< of the grid
  std::variant<tile_lists::Args, tile_lists::FunctionArgs, tile_lists::MaskArgs,
               tile_lists::TransposeArgs, tile_lists::OrderArgs, tile_lists::CutBitsArgs>
      args;
};

/// Makes rows of tiles of a problem's list, of its mask function, or of its bool mask. The problem
/// outlives it.
class TileListsMaker {
 public:
  TileListsMaker(const Problem& problem, const WantedLists& wanted);
  void add_memory(std::vector<MemoryPart>& items) const;
  /// Takes the workspace of add_memory().
  void take(WorkspaceCutter& workspace);
  /// The kernels of a mask function, and those that read what they make, leave at once where it is
  /// not 0. The order alone may run. Nobody reads it then.
  void leave_where(const int* taken) { taken_ = taken; }
  // What kernels read, after take(). of_queries() has the order; beside a mask it is up to date
  // only where it is wanted.
  tile::TileLists of_queries() const;
  tile::TileLists of_keys() const;  ///< by_keys
  /// The launches in their order; `mask`: the bits of the problem's, in lines of keys where rows of
  /// keys are wanted, else of queries.
  std::vector<ListsStep> steps(const tile::MaskBits& mask = {}) const;
  /// Starts them. The next kernel may start before the last of them ends and waits by
  /// wait_for_previous().
  void make(void* stream, const tile::MaskBits& mask = {}) const;

 private:
  const Problem& problem_;
  WantedLists wanted_;
  tile_lists::Args args_;
  tile_lists::TransposeArgs transpose_;
  tile_lists::OrderArgs order_;
  std::int64_t lists_ = 1;
  int list_b_ = 0, list_h_ = 0;
  int sharing_ = 1, heads_ = 1;
  int shown_most_ = 0;  ///< cut tiles of a row whose pairs are kept as bits
  unsigned* shown_ = nullptr;
  const int* taken_ = nullptr;

  void take_list();
  void count_lists();
  void count_shown();
  ListsStep rows_step() const;
  ListsStep mask_step(const tile::MaskBits& mask) const;
  ListsStep order_step() const;
  ListsStep transpose_step(const tile_lists::TransposeArgs& args) const;
  tile_lists::TransposeArgs way_back() const;
  void start(const ListsStep& step, void* stream) const;
  bool narrows() const { return wanted_.narrowed && problem_.mask.defined(); }
  std::int64_t bit_words() const { return lists_ * args_.rows * 2 * args_.words; }
  std::int64_t key_bit_words() const {
    return lists_ * transpose_.to_rows * 2 * transpose_.to_words;
  }
  /// Of a cut tile, four a query.
  std::int64_t tile_words() const { return std::int64_t{4} * wanted_.tile_q; }
  std::int64_t shown_words() const { return lists_ * args_.rows * shown_most_ * tile_words(); }
  std::int64_t listed_words() const { return lists_ * args_.query_blocks * args_.block_words; }
};

}  // namespace tilewise::cuda
