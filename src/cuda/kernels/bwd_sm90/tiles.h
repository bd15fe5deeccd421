/// Tiles of bwd_sm90: the config and order of a problem, what it would take. Pure functions; the
/// numbers are measured (bwd_sm90/README.md).
#pragma once

#include <cstdint>
#include <string>

#include "cuda/kernels/bwd_sm90/args.h"
#include "cuda/kernels/tile_lists/maker.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// Head dim of the config: 64, 96, 128, 192 or 256.
int bwd_sm90_padded(std::int64_t dim);

/// Whether position leaves some rows no key, which the host can tell.
bool bwd_sm90_hides_rows(const Problem& problem);
/// Whether it may: with lengths that only the device knows too.
bool bwd_sm90_may_hide_rows(const Problem& problem);

bwd_sm90::Config bwd_sm90_config(const Problem& problem);
/// With a list whose blocks have 64 keys: see Config::passes.
bwd_sm90::Config bwd_sm90_passing_config(const Problem& problem);
/// Why it does not run a problem; empty when it does.
std::string bwd_sm90_passing_refusal(const Problem& problem);
/// The rows of tiles that it walks.
WantedLists bwd_sm90_wanted_lists(const bwd_sm90::Config& config);

/// Sections of key heads: what a section's tiles read and add to again and again stays in L2.
bwd_sm90::SectionOrder bwd_sm90_order(const Problem& problem, const bwd_sm90::Config& config);

/// Sections whose tiles keep every multiprocessor busy for about one tile: as far must preparation
/// run ahead of the tiles and conversion behind them.
int bwd_sm90_sections_apart(const bwd_sm90::SectionOrder& order, const bwd_sm90::Config& config);

/// Sections that conversion runs behind the tiles: as many, or more where tiles differ in length,
/// so that the longest of a section has ended when its conversions are taken.
int bwd_sm90_lag(const Problem& problem, const bwd_sm90::SectionOrder& order,
                 const bwd_sm90::Config& config);

/// Chunks of queries of a head and blocks of keys; of packed sequences with those that may be none.
std::int64_t bwd_sm90_chunks(const Problem& problem, const bwd_sm90::Config& config);
std::int64_t bwd_sm90_key_blocks(const Problem& problem, const bwd_sm90::Config& config);

/// Tiles of all key heads, a key head's once.
std::int64_t bwd_sm90_tiles(const Problem& problem, const bwd_sm90::Config& config);

/// Parts that a tile's queries are cut into, where the tiles leave multiprocessors idle; 1: they
/// are not.
int bwd_sm90_parts(const Problem& problem, const bwd_sm90::Config& config);

/// Blocks of keys of a span at least; 1 without spans.
int bwd_sm90_span_blocks(const bwd_sm90::Config& config);

/// Parts of a key head's query heads that are jobs of their own, where the queries of all of them
/// would not stay in the L2 cache while tiles of different lengths walk them; 1: none. Such sharers
/// count as key heads in the order.
int bwd_sm90_sharers(const Problem& problem, const bwd_sm90::Config& config);

/// Query rows of a head in the statistics and in the sums of dQ.
std::int64_t bwd_sm90_rows(const Problem& problem, const bwd_sm90::Config& config);

/// Entries of the kernel's queue: chunks of rows to prepare and to convert, tiles.
std::int64_t bwd_sm90_jobs(const Problem& problem, const bwd_sm90::Config& config);

/// Predicted milliseconds.
double bwd_sm90_ms(const Problem& problem, const bwd_sm90::Config& config, const Hardware& machine);

}  // namespace tilewise::cuda
