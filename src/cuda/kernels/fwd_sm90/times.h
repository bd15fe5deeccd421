/// What a tile of fwd_sm90 would take for a problem. The constants are measured (README.md).
#pragma once

#include "cuda/kernels/fwd_sm90/tiles.h"

namespace tilewise::cuda::fwd_sm90_times {

/// Queries of a tile, row blocks of a head, heads as tiles see them.
struct QueryGrid {
  std::int64_t queries, blocks, heads;
};
QueryGrid query_grid(const Problem& problem, const FwdSm90Tile& tile);

/// Milliseconds with the keys in `splits` parts, their merge counted.
double predict(const Problem& problem, const FwdSm90Tile& tile, int splits,
               const Hardware& machine);

/// Whether entries of lengths that differ, known to the device alone, take the queries of a chunk
/// each, on all their keys.
bool is_ragged_chunk(const Problem& problem);

/// What they take: tiles are handed out until none is left, and the longest ends last.
double ragged_ms(const Problem& problem, const FwdSm90Tile& tile, int splits,
                 const Hardware& machine);

/// Whether memory may bound a problem: few queries of each entry on all keys, of one length.
bool reads_for_few(const Problem& problem);

/// Tiles over the places that the machine has for them.
double waves_of(const Problem& problem, const FwdSm90Tile& tile, int splits,
                const Hardware& machine);

/// The time that reading keys and values takes, over that of tiles that never end: where the last
/// of several waves is not full, multiprocessors are idle (an H200,
/// bench/results/h200/served-parts.csv: 0.97 of whole waves).
double reading_factor(double waves);

/// What a problem takes that reads_for_few(): memory's time, whoever reads, or that of the tiles of
/// a multiprocessor where that is longer. `rank` counts starts and ends of tiles too, which other
/// rows do not: it orders numbers of parts.
struct Reading {
  double ms, rank;
};
Reading reading(const Problem& problem, const FwdSm90Tile& tile, int splits,
                const Hardware& machine);

/// Whether few queries read keys whose lengths are on the device, each key once for all heads of a
/// group.
bool serves_few(const Problem& problem);

/// What they take, as the host guesses: pools have their share for all entries.
double served_ms(const Problem& problem, const FwdSm90Tile& tile, int splits,
                 const Hardware& machine);

}  // namespace tilewise::cuda::fwd_sm90_times
