#include "cuda/kernels/fwd_sm80/tiles.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cuda/host/common.h"
#include "cuda/host/expressions.h"
#include "cuda/jit/config_text.h"
#include "cuda/kernels/tile_lists/kinds.h"

namespace tilewise::cuda::fwd_tiles {
namespace {

// By the larger padded head dim, best first; smaller tiles are for small grids and little shared
// memory.
constexpr Tile kTiles32[] = {{{128, 64, 4, 1, 2, true}, 3, 260.0},
                             {{64, 128, 4, 1, 2, true}, 3, 209.0},
                             {{64, 64, 4, 1, 2, true}, 4, 221.0},
                             {{16, 128, 4, 4, 2, true}, 4, 220.0, 1024}};
constexpr Tile kTiles64[] = {{{128, 64, 4, 1, 2, true}, 2, 365.0},
                             {{64, 128, 4, 1, 2, true}, 2, 308.0},
                             {{64, 64, 4, 1, 2, true}, 4, 350.0},
                             {{16, 128, 4, 4, 2, true}, 4, 250.0, 512}};
constexpr Tile kTiles96[] = {{{128, 64, 4, 1, 2, false}, 2, 370.0},
                             {{64, 64, 4, 1, 2, false}, 2, 295.0}};
constexpr Tile kTiles128[] = {{{128, 64, 4, 1, 2, false}, 2, 415.0},
                              {{64, 64, 4, 1, 2, true}, 2, 338.0},
                              {{16, 128, 4, 4, 1, true}, 2, 220.0, 512}};
// With a bias or a mask beside them: two stages leave no room for a second block.
constexpr Tile kPairs128[] = {{{128, 64, 4, 1, 1, false}, 2, 405.0},
                              {{64, 64, 4, 1, 2, true}, 2, 338.0},
                              {{16, 128, 4, 4, 1, true}, 2, 220.0, 512}};
constexpr Tile kTiles192[] = {{{128, 64, 8, 1, 2, false}, 1, 310.0},
                              {{64, 32, 4, 1, 2, false}, 2, 285.0}};
constexpr Tile kTiles256[] = {{{128, 64, 8, 1, 2, false}, 1, 330.0},
                              {{64, 32, 4, 1, 2, false}, 2, 290.0}};
// Above 256, of guessed speeds: right on a card, not timed.
constexpr Tile kTiles512[] = {{{64, 32, 4, 1, 1, false}, 2, 250.0},
                              {{32, 16, 2, 1, 1, false}, 2, 180.0}};
// Two planes: every operand is twice as wide and every product three.
constexpr Tile kPlanes32[] = {{{128, 64, 4, 1, 2, false}, 2, 114.0},
                              {{64, 64, 4, 1, 2, false}, 3, 102.0}};
constexpr Tile kPlanes64[] = {{{128, 64, 4, 1, 1, false}, 2, 145.0},
                              {{64, 64, 4, 1, 1, false}, 3, 124.0}};
constexpr Tile kPlanes96[] = {{{64, 64, 4, 1, 1, false}, 2, 122.0}};
constexpr Tile kPlanes128[] = {{{64, 64, 4, 1, 1, false}, 2, 126.0}};
constexpr Tile kPlanes192[] = {{{64, 32, 4, 1, 1, false}, 2, 107.0}};
constexpr Tile kPlanes256[] = {{{64, 16, 4, 1, 1, false}, 2, 90.0}};
constexpr Tile kPlanes512[] = {{{64, 16, 4, 1, 1, false}, 1, 80.0},
                               {{32, 16, 2, 1, 1, false}, 1, 50.0},
                               {{16, 16, 1, 1, 1, false}, 1, 30.0}};
// With expressions: warps of 16 rows leave them registers.
constexpr Tile kExpressions64[] = {{{64, 64, 4, 1, 2, true}, 3, 300.0},
                                   {{16, 128, 4, 4, 2, true}, 4, 250.0, 512}};
constexpr Tile kExpressions128[] = {{{64, 64, 4, 1, 2, true}, 2, 320.0},
                                    {{16, 128, 4, 4, 1, true}, 2, 220.0, 512}};
constexpr Tile kTile16[] = {{{16, 16, 1, 1, 2, false}, 8, 60.0}};

}  // namespace

std::span<const Tile> tiles(const Problem& p, bool compares) {
  if (compares) return kTile16;
  const int dim = std::max(host::padded(p.head_dim), host::padded(p.head_dim_v));
  const bool planes = host::form(p).planes == 2;
  if (expressions_of(p).any() && !planes && dim <= 128)
    return dim <= 64 ? std::span<const Tile>(kExpressions64) : kExpressions128;
  if (dim <= 32) return planes ? std::span<const Tile>(kPlanes32) : kTiles32;
  if (dim <= 64) return planes ? std::span<const Tile>(kPlanes64) : kTiles64;
  if (dim <= 96) return planes ? std::span<const Tile>(kPlanes96) : kTiles96;
  if (dim <= 128 && !planes && host::pair_kind(p).staged) return kPairs128;
  if (dim <= 128) return planes ? std::span<const Tile>(kPlanes128) : kTiles128;
  if (dim <= 192) return planes ? std::span<const Tile>(kPlanes192) : kTiles192;
  if (dim <= 256) return planes ? std::span<const Tile>(kPlanes256) : kTiles256;
  return planes ? std::span<const Tile>(kPlanes512) : kTiles512;
}

double product_columns(const Problem& p) {
  return host::slices(p.head_dim_v) * host::padded(p.head_dim) + host::padded(p.head_dim_v);
}

/// As fwd_sm80/kernel.cuh lays it out.
int shared_bytes(const Config& c) {
  const int q = c.shape.block_m * std::max(c.head_dim * c.form.planes, c.head_dim_v) * 2;
  const tile::PairRoom room(c.pairs, false, c.shape.block_m * c.shape.key_warps / c.shape.warps,
                            c.shape.block_n / c.shape.key_warps);
  return q + c.shape.stages * c.shape.block_n * (c.head_dim + c.head_dim_v) * c.form.planes * 2 +
         c.shape.warps * room.bytes;
}

Config make_config(const Problem& p, const Tile& tile, bool split, int limit_kib) {
  const tile::Form form = host::form(p);
  Config config = {.form = form,
                   .head_dim = host::padded(p.head_dim),
                   .head_dim_v = host::padded(p.head_dim_v) / host::slices(p.head_dim_v),
                   .slices = host::slices(p.head_dim_v),
                   .shape = tile.shape,
                   .positional = p.has_positional_mask(),
                   .modified = host::is_modified(p),
                   .pairs = host::pair_kind(p),
                   .split = split,
                   .dropout = drops(p),
                   .packed = p.packed,
                   .keys = host::reads_pages(p) ? Keys::pages
                           : p.packed_keys()    ? Keys::packed
                                                : Keys::entry,
                   .lists = split ? tile::Lists::none : mma_lists(p),
                   .expressions = expressions_of(p)};
  config.shape.q_in_registers = tile.shape.q_in_registers && form.planes == 1;
  config.pairs.staged = config.pairs.staged && shared_bytes(config) <= limit_kib * 1024;
  return config;
}

namespace {

std::string shape_text(const fwd_sm80::Shape& s) {
  return number_text("block_m", s.block_m) + number_text("block_n", s.block_n) +
         number_text("warps", s.warps) + number_text("key_warps", s.key_warps) +
         number_text("stages", s.stages) + flag_text("q_in_registers", s.q_in_registers);
}

}  // namespace

KernelUnit unit(const Config& c, int min_blocks) {
  std::string config = host::form_text(c.form) + number_text("head_dim", c.head_dim) +
                       number_text("head_dim_v", c.head_dim_v);
  if (c.slices > 1) config += number_text("slices", c.slices);
  config += group_text("shape", shape_text(c.shape)) + flag_text("positional", c.positional) +
            flag_text("modified", c.modified) + host::pair_text(c.pairs) +
            flag_text("split", c.split);
  if (c.dropout) config += flag_text("dropout", true);
  if (c.packed) config += flag_text("packed", true);
  if (c.keys != Keys::entry) config += enum_text("keys", "Keys", c.keys);
  if (c.listed()) config += enum_text("lists", "tilewise::tile::Lists", c.lists);
  config += expressions_text(c.expressions);
  return {.stem = "fwd_sm80",
          .file = "fwd_sm80/kernel",
          .config = std::move(config),
          .threads = c.shape.warps * 32,
          .min_blocks = min_blocks,
          .shared_bytes = shared_bytes(c),
          .args = c.ragged() ? "RaggedArgs" : "Args"};
}

fwd_sm80::Args slice_of(fwd_sm80::Args args, int slice, const Config& config) {
  const int first = slice * config.head_dim_v;
  const bool floats = config.split || config.form.scaled;
  args.v.data = static_cast<unsigned short*>(args.v.data) + first;
  args.cols_v = std::clamp(args.cols_v - first, 0, config.head_dim_v);
  args.head_dim_v = std::clamp(args.head_dim_v - first, 0, config.head_dim_v);
  args.o.data = static_cast<char*>(args.o.data) + first * args.o.stride_d * (floats ? 4 : 2);
  return args;
}

}  // namespace tilewise::cuda::fwd_tiles
