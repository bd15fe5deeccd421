#include "cuda/kernels/bwd_sm80/tiles.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>

#include "cuda/host/cut_blocks.h"
#include "cuda/host/expressions.h"
#include "cuda/jit/config_text.h"
#include "cuda/kernels/bwd_sm80/captures.h"
#include "cuda/kernels/tile_lists/kinds.h"
#include "plan/accounting.h"
#include "plan/batch_invariance.h"
#include "plan/forms.h"
#include "problem/blocks.h"

namespace tilewise::cuda::bwd_tiles {
namespace {

// By the larger padded head dim, best first; smaller tiles are for little shared memory.
constexpr Tile kOne32[] = {{{64, 128, 4, 1, 32, 2}, 2, 260.0}, {{64, 64, 4, 1, 32, 2}, 3, 205.0}};
// With expressions: fragments that leave them registers.
constexpr Tile kExpressions64[] = {{{64, 64, 4, 1, 32, 2}, 2, 270.0}};
constexpr Tile kExpressions128[] = {{{64, 128, 8, 2, 16, 2}, 1, 300.0}};
constexpr Tile kOne64[] = {{{64, 128, 4, 1, 32, 2}, 2, 350.0}, {{64, 64, 4, 1, 32, 2}, 2, 270.0}};
constexpr Tile kOne96[] = {{{64, 64, 4, 1, 64, 2}, 2, 260.0}};
constexpr Tile kOne128[] = {{{64, 128, 8, 2, 32, 2}, 1, 325.0}, {{64, 64, 4, 1, 64, 1}, 2, 300.0}};
constexpr Tile kOne192[] = {{{64, 64, 8, 2, 32, 2}, 1, 250.0}, {{32, 64, 8, 2, 16, 1}, 1, 200.0}};
constexpr Tile kOne256[] = {{{32, 64, 8, 2, 16, 2}, 1, 225.0}, {{32, 32, 4, 2, 16, 1}, 1, 120.0}};

// The first member is bwd_sm80 without dQ, the second bwd_dq_sm80, whose column_warps and sub_m do
// not matter.
constexpr TilePair kTwo32[] = {
    {{{64, 128, 4, 1, 32, 2}, 2, 150.0}, {{128, 32, 4, 1, 32, 2}, 2, 150.0}}};
constexpr TilePair kTwo64[] = {
    {{{64, 128, 4, 1, 32, 2}, 2, 290.0}, {{128, 32, 4, 1, 32, 2}, 2, 290.0}}};
constexpr TilePair kTwo96[] = {
    {{{64, 64, 4, 1, 64, 2}, 2, 240.0}, {{64, 64, 4, 1, 32, 2}, 2, 240.0}}};
constexpr TilePair kTwo128[] = {
    {{{64, 64, 4, 1, 64, 2}, 2, 260.0}, {{128, 32, 4, 1, 32, 2}, 2, 260.0}}};
constexpr TilePair kTwo192[] = {
    {{{64, 64, 8, 2, 32, 2}, 1, 200.0}, {{64, 32, 4, 1, 32, 1}, 2, 200.0}},
    {{{32, 64, 8, 2, 16, 1}, 1, 160.0}, {{64, 32, 4, 1, 32, 1}, 2, 160.0}}};
constexpr TilePair kTwo256[] = {
    {{{32, 64, 8, 2, 16, 2}, 1, 180.0}, {{64, 32, 4, 1, 32, 1}, 2, 180.0}},
    {{{32, 32, 4, 2, 16, 1}, 1, 100.0}, {{64, 32, 4, 1, 32, 1}, 2, 100.0}}};
// float32: operands in one or two planes with scale factors; no column_warps.
constexpr TilePair kFloat32[] = {
    {{{64, 128, 4, 1, 32, 2}, 2, 80.0}, {{128, 32, 4, 1, 32, 2}, 2, 80.0}}};
constexpr TilePair kFloat64[] = {
    {{{64, 64, 4, 1, 64, 1}, 2, 87.0}, {{64, 64, 4, 1, 32, 1}, 2, 87.0}}};
constexpr TilePair kFloat96[] = {
    {{{32, 64, 4, 1, 32, 1}, 2, 85.0}, {{64, 32, 4, 1, 32, 1}, 2, 85.0}}};
constexpr TilePair kFloat128[] = {
    {{{32, 64, 4, 1, 32, 1}, 2, 74.0}, {{64, 32, 4, 1, 32, 1}, 2, 74.0}}};
constexpr TilePair kFloat192[] = {
    {{{16, 64, 4, 1, 16, 1}, 1, 60.0}, {{64, 16, 4, 1, 32, 1}, 1, 60.0}},
    {{{16, 32, 2, 1, 16, 1}, 1, 35.0}, {{32, 16, 2, 1, 32, 1}, 1, 35.0}}};
constexpr TilePair kFloat256[] = {
    {{{16, 64, 4, 1, 16, 1}, 1, 50.0}, {{64, 16, 4, 1, 32, 1}, 1, 50.0}, true},
    {{{16, 32, 2, 1, 16, 1}, 1, 30.0}, {{32, 16, 2, 1, 32, 1}, 1, 30.0}, true}};

// Above 256 columns, all by dim 512, of guessed speeds: right on a card, not timed.
constexpr TilePair kTwo512[] = {
    {{{32, 64, 4, 1, 32, 1}, 1, 120.0}, {{32, 16, 2, 1, 32, 1}, 2, 120.0}, true, true},
    {{{32, 32, 2, 1, 32, 1}, 1, 90.0}, {{32, 16, 2, 1, 32, 1}, 1, 90.0}, true, true},
    {{{16, 32, 2, 1, 16, 1}, 1, 70.0}, {{32, 16, 2, 1, 32, 1}, 1, 70.0}, true, true}};
constexpr TilePair kFloat512[] = {
    {{{16, 32, 2, 1, 16, 1}, 1, 30.0}, {{16, 16, 1, 1, 16, 1}, 1, 30.0}, true, true},
    {{{16, 16, 1, 1, 16, 1}, 1, 20.0}, {{16, 16, 1, 1, 16, 1}, 1, 20.0}, true, true}};

int largest_dim(const Problem& p) {
  return std::max(host::padded(p.head_dim), host::padded(p.head_dim_v));
}

std::int64_t pairs_of(const Problem& p) { return planned_batch(p) * p.heads_q * p.seq_q * p.seq_k; }
std::string shape_text(const bwd_sm80::Shape& s) {
  return number_text("block_m", s.block_m) + number_text("block_n", s.block_n) +
         number_text("warps", s.warps) + number_text("column_warps", s.column_warps) +
         number_text("sub_m", s.sub_m) + number_text("stages", s.stages);
}
std::string output_text(const bwd_sm80::Output& o) {
  std::string text = flag_text("with_dq", o.with_dq);
  if (o.gradients != Gradients::both)
    text += enum_text("gradients", "tilewise::bwd_sm80::Gradients", o.gradients);
  if (o.columns > 0) text += number_text("columns", o.columns) + number_text("column", o.column);
  return text;
}
KernelUnit unit(const Config& c, const char* stem, const char* file, int min_blocks, int bytes) {
  std::string config = host::form_text(c.form) + number_text("head_dim", c.head_dim) +
                       number_text("head_dim_v", c.head_dim_v) +
                       group_text("shape", shape_text(c.shape)) +
                       flag_text("modified", c.modified) + host::pair_text(c.pairs) +
                       group_text("output", output_text(c.output)) + flag_text("split", c.split) +
                       flag_text("two_plane", c.two_plane);
  if (c.dropout) config += flag_text("dropout", true);
  if (c.packed) config += flag_text("packed", true);
  if (c.listed()) config += enum_text("lists", "tilewise::tile::Lists", c.lists);
  config += expressions_text(c.expressions);
  return {.stem = stem,
          .file = file,
          .config = std::move(config),
          .threads = c.shape.warps * 32,
          .min_blocks = min_blocks,
          .shared_bytes = bytes,
          .args = c.packed ? "RaggedArgs" : "Args"};
}

}  // namespace

bool is_small(const Problem& p) { return pairs_of(p) <= std::int64_t{1} << 21; }

std::span<const Tile> one_pass_tiles(const Problem& p) {
  const int dim = largest_dim(p);
  if (expressions_of(p).any() && dim <= 128 && (dim <= 64 || dim > 96))
    return dim <= 64 ? std::span<const Tile>(kExpressions64) : kExpressions128;
  if (dim <= 32) return kOne32;
  if (dim <= 64) return kOne64;
  if (dim <= 96) return kOne96;
  if (dim <= 128) return kOne128;
  if (dim <= 192) return kOne192;
  return kOne256;
}

std::span<const TilePair> two_pass_tiles(const Problem& p) {
  const int dim = largest_dim(p);
  const bool scaled = host::form(p).scaled;
  if (dim <= 32) return scaled ? std::span<const TilePair>(kFloat32) : kTwo32;
  if (dim <= 64) return scaled ? std::span<const TilePair>(kFloat64) : kTwo64;
  if (dim <= 96) return scaled ? std::span<const TilePair>(kFloat96) : kTwo96;
  if (dim <= 128) return scaled ? std::span<const TilePair>(kFloat128) : kTwo128;
  if (dim <= 192) return scaled ? std::span<const TilePair>(kFloat192) : kTwo192;
  if (dim <= 256) return scaled ? std::span<const TilePair>(kFloat256) : kTwo256;
  return scaled ? std::span<const TilePair>(kFloat512) : kTwo512;
}

Dims dims(const Problem& p) {
  if (host::form(p).scaled || largest_dim(p) > 256)
    return {host::padded(p.head_dim), host::padded(p.head_dim_v)};
  return {largest_dim(p), largest_dim(p)};
}

namespace {

/// Pairs of a warp of bwd_sm80, of bwd_dq_sm80.
tile::PairRoom key_room(const Config& c) {
  return {c.pairs, true, c.shape.sub_m, c.shape.block_n * c.shape.column_warps / c.shape.warps};
}
tile::PairRoom query_room(const Config& c) {
  return {c.pairs, false, c.shape.block_m / c.shape.warps, c.shape.block_n};
}

}  // namespace

/// As bwd_sm80/keys.cuh lays it out.
int shared_bytes(const Config& c) {
  const int row = (c.head_dim + c.head_dim_v) * c.form.planes * 2;
  const int crossing = c.shape.block_n * c.shape.block_m * 2 * (c.two_plane ? 2 : 1);
  const int crossing_ds = c.output.with_dq || c.shape.column_warps > 1 ? crossing : 0;
  return c.shape.block_n * row +
         c.shape.stages * c.shape.block_m * (row + (c.keeps_low() ? 12 : 8)) + crossing_ds +
         (c.shape.column_warps > 1 ? crossing : 0) + c.shape.warps * key_room(c).bytes;
}
/// As bwd_sm80/queries.cuh lays it out.
int query_shared_bytes(const Config& c) {
  return (c.shape.block_m + c.shape.stages * c.shape.block_n) * (c.head_dim + c.head_dim_v) *
             c.form.planes * 2 +
         c.shape.warps * query_room(c).bytes;
}

Config make_config(const Problem& p, const Tile& tile, Launch launch, bool split, int limit_kib) {
  const tile::Form form = host::form(p);
  Config config = {.form = form,
                   .head_dim = dims(p).qk,
                   .head_dim_v = dims(p).v,
                   .shape = tile.shape,
                   .modified = host::is_modified(p),
                   .pairs = host::pair_kind(p),
                   .output = {.with_dq = launch == Launch::all},
                   .split = split,
                   .two_plane = !form.scaled && is_small(p),
                   .dropout = drops(p),
                   .packed = p.packed,
                   .lists = split ? tile::Lists::none : mma_lists(p),
                   .expressions = expressions_of(p)};
  const int bytes = launch == Launch::queries ? query_shared_bytes(config) : shared_bytes(config);
  config.pairs.staged = config.pairs.staged && bytes <= limit_kib * 1024;
  return config;
}

RaggedArgs ragged_args(const Problem& p, const Args& args) {
  RaggedArgs ragged;
  ragged.args = args;
  ragged.queries = host::query_sequences(p);
  ragged.keys = host::key_sequences(p);
  ragged.chunked_q = host::is_chunked(p, 0);
  ragged.chunked_k = host::is_chunked(p, 1);
  ragged.chunked_v = host::is_chunked(p, 2);
  ragged.chunked_o = host::is_chunked(p, 3);
  return ragged;
}

KernelUnit key_unit(const Config& c, int min_blocks) {
  return unit(c, "bwd_sm80", "bwd_sm80/keys", min_blocks, shared_bytes(c));
}
KernelUnit query_unit(const Config& c, int min_blocks) {
  return unit(c, "bwd_dq_sm80", "bwd_sm80/queries", min_blocks, query_shared_bytes(c));
}
KernelUnit refine_unit(const Config& c, int min_blocks) {
  KernelUnit made = query_unit(c, min_blocks);
  made.entry = "refine";
  return made;
}

/// Where that of O, by delta, would show too: problems of a few rows, rows that see a few keys.
bool is_tiny(const Problem& p) {
  constexpr std::int64_t kFewPairs = (std::int64_t{1} << 16) - 1, kPairs = std::int64_t{1} << 17;
  constexpr std::int64_t kFewKeys = 32;
  const bool narrow = p.left != Problem::kUnbounded && p.right != Problem::kUnbounded &&
                      p.left + p.right < kFewKeys;
  // Any of the sequences may have few keys: the host does not see them.
  if (p.packed) return is_small(p);
  const bool few =
      p.seq_k <= kFewKeys || narrow || p.key_lengths.defined() || p.block_list.defined();
  return pairs_of(p) <= (few ? kPairs : kFewPairs);
}

bool sums_gradients(const Problem& p) {
  return p.dbias.defined() || p.dsinks.defined() || p.precision == Precision::refined;
}

bool refines(const Problem& p) {
  return refines_all(p) || p.bias.defined() || expressions_of(p).shifts;
}

bool refines_all(const Problem& p) {
  const tile::Form form = host::form(p);
  const bool shows = is_tiny(p) || (is_small(p) && wants_captures(p));
  return form.planes == 2 || (!form.scaled && shows) || sums_gradients(p);
}

// Four for dK and dV, five where they are apart; three for dQ. A slice of dV takes S, one of dK or
// dQ takes dP too.
double two_pass_products(const Problem& p, const TilePair& pair) {
  if (pair.sliced) return 3.0 + 4.0 * host::slices(p.head_dim) + host::slices(p.head_dim_v);
  return (pair.apart ? 5.0 : 4.0) + 3.0;
}

namespace {

/// A gradient of `dim` columns in launches of at most 256.
void add_slices(std::vector<Config>& launches, Config config, std::int64_t dim) {
  config.output.columns = host::padded(dim) / host::slices(dim);
  for (config.output.column = 0; config.output.column < host::padded(dim);
       config.output.column += config.output.columns)
    launches.push_back(config);
}

}  // namespace

std::vector<Config> key_launches(const Problem& p, const TilePair& pair, const Config& config) {
  if (!pair.apart) return {config};
  Config keys = config, values = config;
  keys.output.gradients = Gradients::keys;
  values.output.gradients = Gradients::values;
  if (!pair.sliced) return {keys, values};
  std::vector<Config> launches;
  add_slices(launches, keys, p.head_dim);
  add_slices(launches, values, p.head_dim_v);
  return launches;
}

std::vector<Config> query_launches(const Problem& p, const TilePair& pair, const Config& config) {
  if (!pair.sliced) return {config};
  std::vector<Config> launches;
  add_slices(launches, config, p.head_dim);
  return launches;
}

Args from_column(Args args, const Config& config) {
  if (config.output.columns == 0) return args;
  for (tile::View4* gradient : {&args.dq, &args.dk, &args.dv}) {
    const long long bytes =
        config.output.column * gradient->stride_d * (config.form.scaled ? 4 : 2);
    gradient->data = static_cast<char*>(gradient->data) + bytes;
  }
  args.head_dim = std::clamp(args.head_dim - config.output.column, 0, config.output.columns);
  args.head_dim_v = std::clamp(args.head_dim_v - config.output.column, 0, config.output.columns);
  return args;
}

std::int64_t rows_q(const Problem& p) {
  return host::query_blocks(p, tile::kScaleRows) * tile::kScaleRows;
}
std::int64_t rows_k(const Problem& p, int block_n) { return round_up(p.seq_k, block_n); }
std::int64_t per_split(std::int64_t rows, int block, int splits) {
  return std::max<std::int64_t>(1, ceil_div(ceil_div(rows, splits), block)) * block;
}

Parts parts_of(const Problem& p, const TilePair& pair, int splits) {
  Parts parts;
  parts.queries_per_split = per_split(p.seq_q, pair.keys.shape.block_m, splits);
  parts.keys_per_split = per_split(p.seq_k, pair.queries.shape.block_n, splits);
  parts.keys =
      static_cast<int>(std::max<std::int64_t>(1, ceil_div(p.seq_q, parts.queries_per_split)));
  parts.queries =
      static_cast<int>(std::max<std::int64_t>(1, ceil_div(p.seq_k, parts.keys_per_split)));
  parts.rows_k = rows_k(p, pair.keys.shape.block_n);
  parts.rows_dq = round_up(p.seq_q, pair.queries.shape.block_m);
  return parts;
}

/// A tile's first operands and its results; packed sequences, which it looks up, take so many times
/// that.
constexpr double kTileMs = 3.5e-3, kPackedTile = 2.5;

/// How much longer a step of a list takes, which a mask cuts in fragments (an H200, two passes,
/// blocks of 64 and 128 at densities 0.25 and 0.1: 1.18 to 1.49 and 1.00 to 1.06).
double listed_step_factor(const Problem& p) {
  if (!p.block_list.defined()) return 1.0;
  return std::max(p.head_dim, p.head_dim_v) <= 64 ? 1.3 : 1.03;
}

/// Pairs of all heads, with the hidden ones of blocks that position cuts.
double counted_pairs(const Problem& p, const Tile& tile) {
  const std::int64_t block_m = tile.shape.block_m, block_n = tile.shape.block_n;
  const std::int64_t pairs = host::seen_blocks(p, block_m, block_n).sum * block_m * block_n;
  return static_cast<double>(p.batch * p.heads_q) * static_cast<double>(pairs);
}

double predict(const Problem& p, const Tile& tile, double heads, double blocks, int block_rows,
               double others, int splits, Products products, const Hardware& machine) {
  const double pairs = visible_pairs(p);
  if (pairs <= 0.0 || heads * blocks <= 0.0) return host::kKernelMs;
  // Columns that a tile fills with zeros take as long as others.
  const Dims of = dims(p);
  const double pair_flops = products.launch * static_cast<double>(of.qk + of.v);
  const double tiles = heads * blocks;
  host::Load load;
  // Blocks that a diagonal cuts are computed whole: half a square of the larger side of a tile. So
  // are those that a length ends in, and steps of which a list shows a part.
  const double taken = taken_over_listed(p, tile.shape.block_m, tile.shape.block_n);
  const double seen = std::max(1.0, pairs / (tiles * block_rows) * taken);
  const int step = block_rows == tile.shape.block_n ? tile.shape.block_m : tile.shape.block_n;
  const double cut = 0.5 * std::max(tile.shape.block_m, tile.shape.block_n);
  const double ends = p.packed ? 0.5 * step : 0.0;
  const double all = std::ceil(others / step) * step;
  const bool counted = host::counts_cut_blocks(p, tile.shape.block_m, tile.shape.block_n);
  const double whole = p.block_list.defined()    ? std::min(seen, all)
                       : counted                 ? counted_pairs(p, tile) / (tiles * block_rows)
                       : p.has_positional_mask() ? seen + cut + ends
                       : p.packed                ? seen + ends
                                                 : std::max(seen, all);
  load.flops = tiles * block_rows * whole * pair_flops * listed_step_factor(p);
  load.tflops = tile.tflops * products.pass / 5.0;  // the tables count five products of any pass
  load.products = host::products(p);
  load.blocks_per_sm = tile.min_blocks;
  load.tile_ms = (p.packed ? kPackedTile : 1.0) * kTileMs;
  const double average = load.flops / tiles, full = others * block_rows * pair_flops;
  const bool uneven = p.has_positional_mask() && !p.block_list.defined();
  load.largest = uneven ? std::max(average, full) / splits : average / splits;
  // Parts that nobody sees end at once.
  load.tiles = tiles * std::clamp(average / load.largest + 0.5, 1.0, static_cast<double>(splits));
  return host::kKernelMs + host::time_ms(load, machine);
}

namespace {

/// Blocks of keys of a head that have some.
double full_key_blocks(const Problem& p, const Tile& tile) {
  return static_cast<double>(host::key_blocks(p, tile.shape.block_n)) - host::idle_blocks(p);
}

}  // namespace

OnePass choose_one_pass(const Problem& p, const Hardware& machine) {
  OnePass best;
  const double heads = static_cast<double>(p.stored_batch() * p.heads_k);
  for (const Tile& tile : one_pass_tiles(p)) {
    if (shared_bytes(make_config(p, tile, Launch::all, false, machine.shared_kib)) >
        machine.shared_kib * 1024)
      continue;
    const double blocks = full_key_blocks(p, tile);
    const bool full = host::fills(heads * blocks, tile.min_blocks, machine);
    for (const int wanted : {1, 2, 3, 4, 6, 8, 12, 16, 24}) {
      const bool whole = full || p.packed || has_tile_lists(p);
      if (wanted > 1 && (whole || p.seq_q < std::int64_t{64} * wanted)) break;
      const std::int64_t queries = per_split(p.seq_q, tile.shape.block_m, wanted);
      const int splits = wanted == 1 ? 1 : static_cast<int>(ceil_div(p.seq_q, queries));
      double ms = predict(p, tile, heads, blocks, tile.shape.block_n,
                          static_cast<double>(p.seq_q * p.group()), splits,
                          {kOnePassProducts, kOnePassProducts}, machine);
      if (splits > 1) {
        const double sums = heads * static_cast<double>(rows_k(p, tile.shape.block_n)) *
                            (dims(p).qk + dims(p).v) * 4.0;
        ms += host::kKernelMs + 1e-6 * sums * (2.0 + 0.25 * splits) / machine.bandwidth_gbps;
      }
      if (!admits(p, {tile.shape.block_m, tile.shape.block_n, splits})) continue;
      if (best.tile == nullptr || ms < best.ms) best = {&tile, splits, ms};
    }
  }
  return best;
}

namespace {

/// Milliseconds of the two launches, and with several parts of adding them.
double predict_two_pass(const Problem& p, const TilePair& pair, int splits,
                        const Hardware& machine) {
  const Parts parts = parts_of(p, pair, splits);
  const double heads_k = static_cast<double>(p.stored_batch() * p.heads_k);
  const double heads_q = static_cast<double>(p.stored_batch() * p.heads_q);
  const double all = two_pass_products(p, pair);
  const double queries = pair.sliced ? 1.0 + 2.0 * host::slices(p.head_dim) : 3.0;
  const double keys = all - queries;
  double ms = predict(p, pair.keys, heads_k, full_key_blocks(p, pair.keys), pair.keys.shape.block_n,
                      static_cast<double>(p.seq_q * p.group()), parts.keys, {keys, all}, machine);
  const double query_blocks =
      static_cast<double>(host::query_blocks(p, pair.queries.shape.block_m)) - host::idle_blocks(p);
  ms += predict(p, pair.queries, heads_q, query_blocks, pair.queries.shape.block_m,
                static_cast<double>(p.seq_k), parts.queries, {queries, all}, machine);
  if (splits > 1) {
    const double sums = heads_k * static_cast<double>(parts.rows_k * parts.keys) *
                            static_cast<double>(dims(p).qk + dims(p).v) +
                        heads_q * static_cast<double>(parts.rows_dq * parts.queries * dims(p).qk);
    ms += host::kKernelMs + 1e-6 * 4.0 * sums / machine.bandwidth_gbps;
  }
  return ms;
}

bool fits(const Problem& p, const TilePair& pair, const Hardware& machine) {
  const int kib = machine.shared_kib;
  return shared_bytes(make_config(p, pair.keys, Launch::keys, false, kib)) <= kib * 1024 &&
         query_shared_bytes(make_config(p, pair.queries, Launch::queries, false, kib)) <=
             kib * 1024;
}

}  // namespace

TwoPass choose_two_pass(const Problem& p, const Hardware& machine) {
  TwoPass best;
  if (plans_one_entry(p)) {
    best = choose_two_pass(one_entry(p), machine);
    if (best.pair != nullptr) best.ms = predict_two_pass(p, *best.pair, best.splits, machine);
    return best;
  }
  for (const TilePair& pair : two_pass_tiles(p)) {
    if (!fits(p, pair, machine)) continue;
    const bool full = host::fills(
        static_cast<double>(p.stored_batch() * p.heads_k) * full_key_blocks(p, pair.keys),
        pair.keys.min_blocks, machine);
    for (const int splits : {1, 2, 3, 4, 6, 8, 12, 16}) {
      const bool short_rows = std::min(p.seq_q, p.seq_k) < std::int64_t{64} * splits;
      const bool whole = full || pair.sliced || p.packed || has_tile_lists(p);
      if (splits > 1 && (whole || short_rows)) break;
      if (!admits(p, {pair.keys.shape.block_m, pair.keys.shape.block_n, splits})) continue;
      const double ms = predict_two_pass(p, pair, splits, machine);
      if (best.pair == nullptr || ms < best.ms) best = {&pair, splits, ms};
    }
    break;
  }
  return best;
}

}  // namespace tilewise::cuda::bwd_tiles
