/// Tiles of fwd_sm90: which fit a problem, what each would take. Pure functions; the numbers are
/// measured (fwd_sm90/README.md).
#pragma once

#include <span>

#include "cuda/kernels/fwd_sm90/args.h"
#include "cuda/kernels/tile_lists/maker.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// What a tile takes on an H200: over n blocks of keys it lasts fixed_us + n * block_us.
struct FwdSm90Time {
  double fixed_us, block_us;
};

/// A tile that was found good. fwd_sm90_config() takes its shape and schedule as far as the problem
/// allows.
struct FwdSm90Tile {
  fwd_sm90::Shape shape;
  FwdSm90Time full, masked;
  fwd_sm90::Schedule schedule;
  bool masked_turns = true;  ///< ping_pong under a mask too
  double skewed = 1.0;  ///< block_us of rows that begin inside of 32 bytes, over that of others
  bool maps = false;    ///< walks what a bool mask leaves

  int block_m() const { return 64 * shape.warpgroups; }
  /// Taken for short windows alone.
  bool for_windows() const { return schedule.q_by_need; }
};

/// Candidates for a problem's head dims.
std::span<const FwdSm90Tile> fwd_sm90_tiles(const Problem& problem);

/// Those that walk what the problem's bool mask leaves, which may be none.
std::span<const FwdSm90Tile> fwd_sm90_masked_tiles(const Problem& problem);

/// log2 of the query heads (rounded up to a power of two) that a tile packs as its rows; 0: none.
/// Heads are packed where their few queries would leave most of a tile empty.
int fwd_sm90_pack_shift(const Problem& problem, const FwdSm90Tile& tile);

/// Rows of a page that come together to a block of `block_n` keys.
int fwd_sm90_box_rows(const Problem& problem, int block_n);

/// How a block of `block_n` keys comes.
fwd_sm90::PageCopies fwd_sm90_page_copies(const Problem& problem, int block_n);

/// Whether the copy engine can bring the elements of a bias, where it has a row for each query.
/// That of packed sequences begins where they do.
bool fwd_sm90_engine_brings_bias(const Problem& problem);

/// Whether a tile walks a list of tiles of keys.
bool fwd_sm90_lists_tiles(const Problem& problem, const FwdSm90Tile& tile);

fwd_sm90::Config fwd_sm90_config(const Problem& problem, const FwdSm90Tile& tile, bool split);

/// Of by_documents() of a problem.
fwd_sm90::Config fwd_sm90_documents_config(const Problem& problem, const FwdSm90Tile& tile);

/// The rows of tiles that it walks: of a tile's queries, or where blocks are smaller of each
/// warpgroup's. `pack_shift`: fwd_sm90_pack_shift().
WantedLists fwd_sm90_wanted_lists(const fwd_sm90::Config& config, int pack_shift);

/// `queries`: of a tile.
fwd_sm90::SectionOrder fwd_sm90_order(const Problem& problem, const fwd_sm90::Config& config,
                                      std::int64_t queries, int splits);

/// The tile and the number of parts of the keys with the least predicted time.
struct FwdSm90Choice {
  const FwdSm90Tile* tile = nullptr;
  int splits = 1;
  double ms = 0.0;
  double reading = 1.0;  ///< of the time that memory takes at least, what these tiles take
};
FwdSm90Choice fwd_sm90_choose(const Problem& problem, const Hardware& machine);

}  // namespace tilewise::cuda
