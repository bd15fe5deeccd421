#include "cuda/kernels/rows/tile_lists.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "cuda/host/common.h"
#include "cuda/host/fill.h"
#include "cuda/host/sequences.h"
#include "cuda/jit/config_text.h"
#include "cuda/kernels/fwd_sm90/tiles.h"
#include "cuda/kernels/rows/mask_map.h"
#include "cuda/kernels/rows/mask_tiles.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using tile_lists::Config;
using Role = MemoryItem::Role;

constexpr std::int64_t kLeastBlock = 16;
constexpr std::int64_t kSharedLimit = 128 * 1024;

bool is_power_of_two(std::int64_t x) { return x > 0 && (x & (x - 1)) == 0; }
int log2_of(std::int64_t x) { return std::countr_zero(static_cast<std::uint64_t>(x)); }

KernelUnit unit(const Config& config) {
  return {.stem = "tile_lists",
          .file = "rows/tile_lists",
          .config = ".tile_q = " + std::to_string(config.tile_q) +
                    number_text("tile_k", config.tile_k) + flag_text("parts", config.parts) +
                    number_text("shared_bytes", config.shared_bytes),
          .threads = tile_lists::kThreads,
          .shared_bytes = config.shared_bytes};
}

/// The config matters to the other kernel alone.
KernelUnit transpose_unit() {
  KernelUnit made = unit({});
  made.entry = "transpose";
  made.args = "TransposeArgs";
  made.threads = tile_lists::kTransposeThreads;
  made.shared_bytes = 0;
  return made;
}

KernelUnit order_unit() {
  KernelUnit made = unit({});
  made.entry = "order";
  made.args = "OrderArgs";
  made.threads = tile_lists::kOrderThreads;
  made.shared_bytes = 8 * (tile_lists::kOrderThreads + 1);
  return made;
}

}  // namespace

bool has_tile_lists(const Problem& p) { return p.block_list.defined() || maps_mask(p); }

std::string tile_lists_refusal(const Problem& p, std::int64_t shared_kib) {
  if (!p.block_list.defined()) return {};
  const BlockList& list = p.block_list;
  if (!is_power_of_two(list.block_q) || !is_power_of_two(list.block_k) ||
      std::min(list.block_q, list.block_k) < kLeastBlock) {
    return "block lists of " + std::to_string(list.block_q) + " x " + std::to_string(list.block_k) +
           " are not supported by this kernel (powers of two from " + std::to_string(kLeastBlock) +
           " on)";
  }
  // Rows of blocks beside the largest tile, 128 queries.
  const std::int64_t words = ceil_div(ceil_div(p.seq_k, list.block_k), 32);
  // Lists with rows of 64 queries, the smallest tile.
  if (p.batch * p.heads_q * ceil_div(p.seq_q, 64) >= std::int64_t{1}
                                                         << tile_lists::OrderArgs::kClassBits) {
    return "block lists of more than 2^" + std::to_string(tile_lists::OrderArgs::kClassBits) +
           " rows of 64 queries are not supported by this kernel";
  }
  // The kernel has a power of two of it.
  const auto limit = static_cast<std::int64_t>(
      std::bit_floor(static_cast<std::uint64_t>(std::min(kSharedLimit, shared_kib * 1024))));
  if (tile_lists::shared_bytes(128, log2_of(list.block_q), words) > limit) {
    return "block lists of " + std::to_string(ceil_div(p.seq_k, list.block_k)) +
           " key blocks are not supported by this kernel";
  }
  return {};
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

double listed_pairs(const Problem& p) {
  const BlockList& list = p.block_list;
  const auto all =
      static_cast<double>(p.batch * p.heads_q * p.seq_q) * static_cast<double>(p.seq_k);
  if (!list.defined()) return all;
  const Tensor& offsets = list.row_offsets;
  const std::int64_t shared =
      (offsets.sizes[0] == 1 ? p.batch : 1) * (offsets.sizes[1] == 1 ? p.heads_q : 1);
  const auto blocks = static_cast<double>(list.block_index.sizes[0] * shared);
  return std::min(all,
                  blocks * static_cast<double>(list.block_q) * static_cast<double>(list.block_k));
}

TileListsMaker::TileListsMaker(const Problem& p, int tile_q, int tile_k, tile::Lists kind,
                               int rows_of_tile, bool packs_heads, MaskLines lines)
    : problem_(p), lines_(p.mask.defined() ? lines : MaskLines::none) {
  // Lengths cut the list of each batch entry differently.
  bool of_batch = p.key_lengths.defined() || p.packed, of_heads = false;
  if (p.block_list.defined()) {
    of_batch = of_batch || p.block_list.row_offsets.sizes[0] > 1;
    of_heads = p.block_list.row_offsets.sizes[1] > 1;
    take_list();
  } else if (p.mask_function.defined()) {
    const expression::Program& mask = *p.mask_function.program;
    const unsigned depends = mask.nodes[static_cast<std::size_t>(mask.result)].depends;
    of_batch = of_batch || (depends & expression::kBatch) != 0;
    of_heads = (depends & expression::kHead) != 0;
  }
  if (lines_ != MaskLines::none) {
    of_batch = of_batch || (p.mask.strides[0] != 0 && p.batch > 1);
    of_heads = of_heads || (p.mask.strides[1] != 0 && p.heads_q > 1);
  }
  args_.seq_q = static_cast<int>(p.seq_q);
  args_.seq_k = static_cast<int>(p.seq_k);
  const Sm90Mask mask = sm90_mask(p);
  args_.low = mask.low;
  args_.high = mask.high;
  args_.top = mask.top;
  host::fill_key_lengths(args_, p);
  if (p.packed) {
    args_.queries = host::query_sequences(p);
    if (!p.paged) args_.keys = host::key_sequences(p);
  }
  args_.list_heads = of_heads ? static_cast<int>(p.heads_q) : 1;
  list_h_ = of_heads ? 1 : 0;
  list_b_ = of_batch ? args_.list_heads : 0;
  lists_ = (of_batch ? p.batch : 1) * args_.list_heads;
  args_.rows = static_cast<int>(ceil_div(p.seq_q, tile_q));
  args_.words = static_cast<int>(ceil_div(ceil_div(p.seq_k, tile_k), 32));
  heads_ = static_cast<int>(packs_heads ? p.heads_k : p.heads_q);
  sharing_ = static_cast<int>(p.batch * heads_ / lists_);
  order_.rows = args_.rows;
  order_.rows_of_tile = rows_of_tile;
  order_.tiles = static_cast<int>(ceil_div(args_.rows, rows_of_tile));
  order_.entries = static_cast<int>(lists_ * order_.tiles);
  transpose_.rows = args_.rows;
  transpose_.words = args_.words;
  transpose_.to_rows = static_cast<int>(ceil_div(p.seq_k, tile_k));
  transpose_.to_words = static_cast<int>(ceil_div(args_.rows, 32));
  config_ = {.tile_q = tile_q, .tile_k = tile_k, .parts = kind == tile::Lists::parts};
  while (config_.shared_bytes <
         tile_lists::shared_bytes(tile_q, args_.shift_q, args_.block_words)) {
    config_.shared_bytes *= 2;
  }
}

void TileListsMaker::take_list() {
  const BlockList& list = problem_.block_list;
  const Tensor& offsets = list.row_offsets;
  args_.row_offsets = static_cast<const int*>(offsets.data);
  args_.offsets_b = offsets.strides[0];
  args_.offsets_h = offsets.strides[1];
  args_.offsets_r = offsets.strides[2];
  args_.block_index = static_cast<const int*>(list.block_index.data);
  args_.index_stride = list.block_index.strides[0];
  if (list.block_full.defined()) {
    args_.block_full = static_cast<const unsigned char*>(list.block_full.data);
    args_.full_stride = list.block_full.strides[0];
  }
  args_.function = problem_.mask_function.defined();
  args_.pairs = static_cast<int>(
      std::min<std::int64_t>(list.block_index.sizes[0], std::numeric_limits<int>::max()));
  args_.shift_q = log2_of(list.block_q);
  args_.shift_k = log2_of(list.block_k);
  args_.query_blocks = static_cast<int>(ceil_div(problem_.seq_q, list.block_q));
  args_.key_blocks = static_cast<int>(ceil_div(problem_.seq_k, list.block_k));
  args_.block_words = static_cast<int>(ceil_div(args_.key_blocks, 32));
}

void TileListsMaker::add_order_memory(std::vector<MemoryPart>& items) const {
  items.push_back(memory_part("order of rows", Role::workspace, DType::int32,
                              {order_.entries + tile::kListClasses}));
}

void TileListsMaker::take_order(WorkspaceCutter& workspace) {
  order_.order = workspace.take<int>(order_.entries + tile::kListClasses);
  order_.classes = order_.order + order_.entries;
  order_.counts = args_.counts;
}

void TileListsMaker::order(void* stream) const {
  const int device = problem_.device.index;
  launch(host::load_config(config_, device, [](const Config&) { return order_unit(); }),
         host::following(1, device), stream, order_);
}

void TileListsMaker::add_transposed_memory(std::vector<MemoryPart>& items) const {
  const std::int64_t rows = lists_ * transpose_.to_rows;
  items.push_back(memory_part("tiles listed, transposed", Role::workspace, DType::int32,
                              {rows * 2 * transpose_.to_words}));
  items.push_back(
      memory_part("counts of tiles, transposed", Role::workspace, DType::int32, {rows * 2}));
}

void TileListsMaker::take_transposed(WorkspaceCutter& workspace) {
  const std::int64_t rows = lists_ * transpose_.to_rows;
  transpose_.bits = args_.bits;
  transpose_.to_bits = workspace.take<unsigned>(rows * 2 * transpose_.to_words);
  transpose_.to_counts = workspace.take<int>(rows * 2);
}

tile::TileLists TileListsMaker::transposed() const {
  tile::TileLists made = lists();
  made.bits = transpose_.to_bits;
  made.counts = transpose_.to_counts;
  made.rows = transpose_.to_rows;
  made.words = transpose_.to_words;
  return made;
}

void TileListsMaker::start_transpose(const tile_lists::TransposeArgs& args, std::int64_t blocks,
                                     void* stream) const {
  const int device = problem_.device.index;
  launch(host::load_config(config_, device, [](const Config&) { return transpose_unit(); }),
         host::following(blocks, device), stream, args);
}
void TileListsMaker::transpose(void* stream) const {
  start_transpose(transpose_, transpose_blocks(), stream);
}

bool TileListsMaker::lists_ahead() const {
  return problem_.block_list.defined() || problem_.mask_function.defined();
}

mask_tiles::Config TileListsMaker::mask_config() const {
  mask_tiles::Config config = {
      .tile_q = config_.tile_q, .tile_k = config_.tile_k, .by_keys = lines_ == MaskLines::keys};
  const int words = config.by_keys ? transpose_.to_words : args_.words;
  while (config.shared_bytes < mask_tiles::shared_bytes(words)) config.shared_bytes *= 2;
  return config;
}

mask_tiles::Args TileListsMaker::mask_args(const tile::MaskBits& mask) const {
  mask_tiles::Args args = {.of = args_, .mask = mask, .listed = lists_ahead()};
  if (lines_ == MaskLines::keys) {
    args.of.rows = transpose_.to_rows;
    args.of.words = transpose_.to_words;
    args.of.bits = transpose_.to_bits;
    args.of.counts = transpose_.to_counts;
  }
  return args;
}

std::int64_t TileListsMaker::mask_blocks() const {
  return lists_ * (lines_ == MaskLines::keys ? transpose_.to_rows : args_.rows);
}

tile_lists::TransposeArgs TileListsMaker::way_back_args() const {
  return {.bits = transpose_.to_bits,
          .rows = transpose_.to_rows,
          .words = transpose_.to_words,
          .to_bits = args_.bits,
          .to_counts = args_.counts,
          .to_rows = args_.rows,
          .to_words = args_.words};
}

void TileListsMaker::narrow(void* stream, const tile::MaskBits& mask) const {
  const int device = problem_.device.index;
  launch(host::load_config(mask_config(), device, mask_tiles_unit),
         host::following(mask_blocks(), device), stream, mask_args(mask));
}

void TileListsMaker::make_by_keys(void* stream, const tile::MaskBits& mask, bool both) const {
  if (lists_ahead()) {
    make_rows(stream);
    transpose(stream);
  }
  if (lines_ == MaskLines::none) return;
  narrow(stream, mask);
  if (both) start_transpose(way_back_args(), way_back_blocks(), stream);
}

std::int64_t TileListsMaker::bit_words() const { return lists_ * args_.rows * 2 * args_.words; }
std::int64_t TileListsMaker::listed_words() const {
  return config_.parts ? lists_ * args_.query_blocks * args_.block_words : 0;
}

void TileListsMaker::add_memory(std::vector<MemoryPart>& items) const {
  const auto add = [&](const char* name, std::int64_t words) {
    items.push_back(memory_part(name, Role::workspace, DType::int32, {words}));
  };
  add("tiles listed", bit_words());
  add("counts of tiles", lists_ * args_.rows * 2);
  if (config_.parts) add("blocks listed", listed_words());
}

void TileListsMaker::take(WorkspaceCutter& workspace) {
  args_.bits = workspace.take<unsigned>(bit_words());
  args_.counts = workspace.take<int>(lists_ * args_.rows * 2);
  if (config_.parts) args_.listed = workspace.take<unsigned>(listed_words());
}

tile::TileLists TileListsMaker::lists() const {
  return {.bits = args_.bits,
          .counts = args_.counts,
          .rows = args_.rows,
          .words = args_.words,
          .list_b = list_b_,
          .list_h = list_h_,
          .listed = args_.listed,
          .query_blocks = args_.query_blocks,
          .block_words = args_.block_words,
          .shift_q = args_.shift_q,
          .shift_k = args_.shift_k,
          .order = order_.order,
          .classes = order_.classes,
          .tiles = order_.tiles,
          .sharing = sharing_,
          .heads = heads_};
}

void TileListsMaker::make_rows(void* stream) const {
  if (problem_.block_list.defined()) {
    const int device = problem_.device.index;
    launch(host::load_config(config_, device, unit), {.x = blocks()}, stream, args_);
  } else {
    const auto map = mask_map_config(config_.tile_q, config_.tile_k, args_.words);
    launch_mask_map(problem_, map, args_, blocks(), stream);
  }
}

void TileListsMaker::make(void* stream, const tile::MaskBits& mask) const {
  if (lists_ahead()) make_rows(stream);
  if (lines_ == MaskLines::queries) narrow(stream, mask);
}

}  // namespace tilewise::cuda
