#include "cuda/kernels/tile_lists/kinds.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "cuda/host/common.h"
#include "cuda/kernels/tile_lists/args.h"
#include "plan/accounting.h"
#include "plan/batch_invariance.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

/// Sizes of blocks are powers of two from here on.
constexpr std::int64_t kLeastBlock = 16;
constexpr std::int64_t kSharedLimit = std::int64_t{128} * 1024;

/// Fewer queries or keys have too few tiles for a kernel before theirs to pay.
constexpr std::int64_t kLeastLength = 512;
/// Bits of a row in shared memory.
constexpr std::int64_t kMostKeys = std::int64_t{1} << 21;
/// Lists of packed sequences have the rows of the longest one: rows at most, for each there is.
constexpr std::int64_t kMostIdle = 4;
/// Queries of a tile, about.
constexpr std::int64_t kRow = 128;

bool is_power_of_two(std::int64_t x) { return x > 0 && (x & (x - 1)) == 0; }

/// Whether rows of 64 queries, the smallest tile, are more than one order can have.
bool has_too_many_rows(const Problem& p) {
  return p.batch * p.heads_q * ceil_div(p.seq_q, 64) >= std::int64_t{1}
                                                            << tile_lists::OrderArgs::kClassBits;
}

/// With `deterministic` a sequence's tiles come in an order that no other sequence decides, and
/// whether there is a map decides it.
bool maps_sequences(const Problem& p) {
  return !p.deterministic && p.batch * p.seq_q <= kMostIdle * p.total_q;
}

/// True where a map of tiles pays: sequences have many, and the order of one sequence's tiles may
/// depend on others.
bool has_many_tiles(const Problem& p) {
  return (!p.packed || maps_sequences(p)) && p.seq_q >= kLeastLength && p.seq_k >= kLeastLength &&
         p.seq_k <= kMostKeys && !has_too_many_rows(p);
}

}  // namespace

bool has_tile_lists(const Problem& p) { return p.block_list.defined() || maps_mask(p); }

bool maps_mask(const Problem& p) {
  return p.mask_function.defined() && !p.block_list.defined() && !p.paged && !p.mask.defined() &&
         has_many_tiles(p);
}

bool maps_bool_mask(const Problem& p) {
  return p.mask.defined() && !p.mask_function.defined() && !p.block_list.defined() && !p.paged &&
         !p.tree.defined() && !p.bias.defined() && has_many_tiles(p);
}

bool prefers_map(const Problem& p) {
  // Where masks of pairs hide few in every tile a list makes the kernels slower.
  if (!p.mask.defined() || p.mask.strides[2] != 0) return false;
  return maps_bool_mask(p) &&
         planned_batch(p) * p.heads_q * ceil_div(p.seq_q, kRow) >= host::kTypicalMultiprocessors;
}

std::string tile_lists_refusal(const Problem& p, std::int64_t shared_kib) {
  if (!p.block_list.defined()) return {};
  const BlockList& list = p.block_list;
  if (!is_power_of_two(list.block_q) || !is_power_of_two(list.block_k) ||
      std::min(list.block_q, list.block_k) < kLeastBlock) {
    return "block lists of " + std::to_string(list.block_q) + " x " + std::to_string(list.block_k) +
           " are not supported by this kernel (powers of two from " + std::to_string(kLeastBlock) +
           " on)";
  }
  if (has_too_many_rows(p)) {
    return "block lists of more than 2^" + std::to_string(tile_lists::OrderArgs::kClassBits) +
           " rows of 64 queries are not supported by this kernel";
  }
  // The kernel that reads the list has a power of two of it, beside the largest tile.
  const auto limit = static_cast<std::int64_t>(
      std::bit_floor(static_cast<std::uint64_t>(std::min(kSharedLimit, shared_kib * 1024))));
  const std::int64_t key_blocks = ceil_div(p.seq_k, list.block_k);
  const int shift_q = std::countr_zero(static_cast<std::uint64_t>(list.block_q));
  if (tile_lists::list_bytes(128, shift_q, ceil_div(key_blocks, 32)) > limit) {
    return "block lists of " + std::to_string(key_blocks) +
           " key blocks are not supported by this kernel";
  }
  return {};
}

double listed_density(const Problem& p) {
  return std::clamp(visible_pairs(p) / std::max(1.0, positional_pairs(p)), 1e-6, 1.0);
}

double taken_over_listed(const Problem& p, std::int64_t queries, std::int64_t keys) {
  if (!p.block_list.defined()) return 1.0;
  const auto blocks = [](std::int64_t rows, std::int64_t block) {
    return std::max(1.0, static_cast<double>(rows) / static_cast<double>(block));
  };
  const double together =
      blocks(queries, p.block_list.block_q) * blocks(keys, p.block_list.block_k);
  const double density = listed_density(p);
  return (1.0 - std::pow(1.0 - density, together)) / density;
}

tile::Lists tile_lists_kind(const Problem& p, int tile_q, int tile_k) {
  if (!has_tile_lists(p)) return tile::Lists::none;
  if (!p.block_list.defined()) return tile::Lists::whole;
  const bool whole = p.block_list.block_q % tile_q == 0 && p.block_list.block_k % tile_k == 0;
  return whole ? tile::Lists::whole : tile::Lists::parts;
}

tile::Lists mma_lists(const Problem& p) {
  if (!has_tile_lists(p)) return tile::Lists::none;
  return p.block_list.defined() ? tile::Lists::parts : tile::Lists::whole;
}

}  // namespace tilewise::cuda
