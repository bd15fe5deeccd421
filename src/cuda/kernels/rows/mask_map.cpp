#include "cuda/kernels/rows/mask_map.h"

#include <string>

#include "cuda/host/common.h"
#include "cuda/host/expression_ranges.h"
#include "cuda/host/expressions.h"
#include "cuda/jit/config_text.h"
#include "problem/blocks.h"

namespace tilewise::cuda {

using mask_map::Args;
using mask_map::Config;

namespace {

/// Fewer queries or keys have too few tiles for a kernel before theirs to pay.
constexpr std::int64_t kLeastLength = 512;
/// Bits of a row in shared memory.
constexpr std::int64_t kMostKeys = std::int64_t{1} << 21;
/// Lists of packed sequences have the rows of the longest one: rows at most, for each there is.
constexpr std::int64_t kMostIdle = 4;

/// With `deterministic` a sequence's tiles come in an order that no other sequence decides, and
/// whether there is a map decides it.
bool maps_sequences(const Problem& p) {
  return !p.deterministic && p.batch * p.seq_q <= kMostIdle * p.total_q;
}

}  // namespace

bool has_many_tiles(const Problem& p) {
  return (!p.packed || maps_sequences(p)) && p.seq_q >= kLeastLength && p.seq_k >= kLeastLength &&
         p.seq_k <= kMostKeys &&
         p.batch * p.heads_q * ceil_div(p.seq_q, 64) < std::int64_t{1}
                                                           << tile_lists::OrderArgs::kClassBits;
}

bool maps_mask(const Problem& p) {
  return p.mask_function.defined() && !p.block_list.defined() && !p.paged && !p.mask.defined() &&
         has_many_tiles(p);
}

Config mask_map_config(int tile_q, int tile_k, int words) {
  Config config = {.tile_q = tile_q, .tile_k = tile_k};
  while (config.shared_bytes < mask_map::shared_bytes(words)) config.shared_bytes *= 2;
  return config;
}

KernelUnit mask_map_unit(const Problem& p, const Config& config) {
  KernelUnit unit = {.stem = "mask_map",
                     .file = "rows/mask_map",
                     .config = ".tile_q = " + std::to_string(config.tile_q) +
                               number_text("tile_k", config.tile_k) +
                               number_text("shared_bytes", config.shared_bytes),
                     .threads = mask_map::kThreads,
                     .shared_bytes = config.shared_bytes};
  unit = with_functions(std::move(unit), p, "");
  unit.prelude += "#include \"cuda/tile/expression_ranges.cuh\"\n" +
                  mask_ranges_text(*p.mask_function.program, mask_name(p));
  return unit;
}

void launch_mask_map(const Problem& p, const Config& config, const Args& args, std::int64_t blocks,
                     void* stream) {
  const Kernel kernel = load_by_key("mask_map\n" + expressions_key(p), config, p.device.index,
                                    [&](const Config& c) { return mask_map_unit(p, c); });
  launch_expressed(p, kernel, {.x = blocks}, stream, args);
}

}  // namespace tilewise::cuda
