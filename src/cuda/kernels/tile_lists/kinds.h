/// tile_lists on the host: which problems have rows of tiles, and of which kind. See README.md.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/tile/lists_args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// True where kernels of tiles have a list: the caller's, or what a mask function leaves.
bool has_tile_lists(const Problem& problem);
/// True for the second of these: a mask function without a list of the caller's, in sequences that
/// have many tiles.
bool maps_mask(const Problem& problem);

/// True where the kernels for Hopper can take a list that is made of a bool mask: without a list or
/// a mask function, in sequences that have many tiles.
bool maps_bool_mask(const Problem& problem);
/// True where they do: the mask is one of keys, and tiles, which are never cut into parts, fill a
/// card.
bool prefers_map(const Problem& problem);

/// Why a list's blocks do not go with tiles on a machine with `shared_kib` of shared memory for a
/// block; empty when they do.
std::string tile_lists_refusal(const Problem& problem, std::int64_t shared_kib = 128);

/// Pairs that steps of `queries` x `keys` take over those that a list shows, blocks drawn at
/// random: a step is taken where one of its blocks is listed. 1 without a list.
double taken_over_listed(const Problem& problem, std::int64_t queries, std::int64_t keys);
/// The share of a list's pairs among those that position shows.
double listed_density(const Problem& problem);

/// How a list's blocks and a tile of a kernel for Hopper go together.
tile::Lists tile_lists_kind(const Problem& problem, int tile_q, int tile_k);
/// The same for the kernels on mma.sync, which take any list bit by bit.
tile::Lists mma_lists(const Problem& problem);

}  // namespace tilewise::cuda
