/// tile_lists on the host: which problems have rows of tiles, and of which kind. See README.md.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/tile/lists_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// Whether the kernels walk rows of tiles: of the caller's list, or of a mask function.
bool has_tile_lists(const Problem& problem);
/// Whether a mask function gives them. The caller has no list then, and sequences have many tiles.
bool maps_mask(const Problem& problem);

/// Whether the Hopper kernels can walk rows of tiles made from a bool mask. The problem has no list
/// and no mask function then, and sequences have many tiles.
bool maps_bool_mask(const Problem& problem);
/// Whether they do. It pays if the mask depends on keys only and the tiles fill a card. A listed
/// tile is never cut into parts.
bool prefers_map(const Problem& problem);

/// Why kernels cannot make rows of tiles from the list. A block has `shared_kib` KiB of shared
/// memory. Empty if they can.
std::string tile_lists_refusal(const Problem& problem, std::int64_t shared_kib = 128);

/// Ratio of the pairs that steps of `queries` x `keys` compute to the pairs of the list, for blocks
/// drawn at random. A step is computed if one of its blocks is listed. 1 without a list.
double taken_over_listed(const Problem& problem, std::int64_t queries, std::int64_t keys);
/// The pairs of the list as a share of those that position leaves visible.
double listed_density(const Problem& problem);

/// How a Hopper kernel with tiles of tile_q x tile_k reads the rows.
tile::Lists tile_lists_kind(const Problem& problem, int tile_q, int tile_k);
/// How the kernels on mma.sync read them: block by block.
tile::Lists mma_lists(const Problem& problem);

}  // namespace tilewise::cuda
