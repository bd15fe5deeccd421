#include "cuda/kernels/rows/mask_tiles.h"

#include <string>

#include "cuda/host/common.h"
#include "cuda/jit/config_text.h"
#include "cuda/kernels/rows/mask_map.h"
#include "plan/batch_invariance.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

/// Queries of a tile, about.
constexpr std::int64_t kRow = 128;

}  // namespace

bool maps_bool_mask(const Problem& p) {
  return p.mask.defined() && !p.mask_function.defined() && !p.block_list.defined() && !p.paged &&
         !p.tree.defined() && !p.bias.defined() && has_many_tiles(p);
}

bool prefers_map(const Problem& p) {
  // Of masks of pairs that hide few in every tile the kernels are slower by a list.
  if (!p.mask.defined() || p.mask.strides[2] != 0) return false;
  return maps_bool_mask(p) &&
         planned_batch(p) * p.heads_q * ceil_div(p.seq_q, kRow) >= host::kTypicalMultiprocessors;
}

KernelUnit mask_tiles_unit(const mask_tiles::Config& config) {
  return {.stem = "mask_tiles",
          .file = "rows/mask_tiles",
          .config = ".tile_q = " + std::to_string(config.tile_q) +
                    number_text("tile_k", config.tile_k) + flag_text("by_keys", config.by_keys) +
                    number_text("shared_bytes", config.shared_bytes),
          .threads = mask_tiles::kThreads,
          .shared_bytes = config.shared_bytes};
}

}  // namespace tilewise::cuda
