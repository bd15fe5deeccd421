#include "cuda/kernels/tile_lists/maker.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "cuda/host/common.h"
#include "cuda/host/expression_ranges.h"
#include "cuda/host/expressions.h"
#include "cuda/host/fill.h"
#include "cuda/host/sequences.h"
#include "cuda/host/sm90_mask.h"
#include "cuda/jit/config_text.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

using tile_lists::Config;
using Role = MemoryItem::Role;
using Work = ListsKernel::Work;

/// The power of two that holds `bytes` of shared memory.
int shared_bytes(std::int64_t bytes, int least) {
  return std::max(least, static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(bytes))));
}

/// Shared memory up to which a block takes several rows of a list.
constexpr std::int64_t kSharedOfRows = 16 * 1024;

std::string config_text(const Config& config) {
  return ".tile_q = " + std::to_string(config.tile_q) + number_text("tile_k", config.tile_k) +
         flag_text("parts", config.parts) + flag_text("by_keys", config.by_keys) +
         flag_text("tells_placed", config.tells_placed) + number_text("rows", config.rows) +
         number_text("shared_bytes", config.shared_bytes);
}

}  // namespace

KernelUnit lists_unit(const Problem& p, const ListsKernel& kernel) {
  KernelUnit unit = {.stem = "tile_lists", .config = config_text(kernel.config)};
  unit.shared_bytes = kernel.config.shared_bytes;
  switch (kernel.work) {
    case Work::from_list:
      unit.entry = "from_list";
      unit.threads = 32 * kernel.config.rows;
      break;
    case Work::from_function:
      unit.entry = "from_function";
      unit.args = "FunctionArgs";
      unit.threads = tile_lists::kFunctionThreads;
      unit = with_functions(std::move(unit), p, "");
      unit.prelude += "#include \"cuda/tile/expression_ranges.cuh\"\n" +
                      mask_ranges_text(*p.mask_function.program, mask_name(p));
      break;
    case Work::from_mask:
      unit.entry = "from_mask";
      unit.args = "MaskArgs";
      unit.threads = tile_lists::kMaskThreads;
      break;
    case Work::transpose:
      unit.entry = "transpose";
      unit.args = "TransposeArgs";
      unit.threads = tile_lists::kTransposeThreads;
      unit.shared_bytes = 0;
      break;
    case Work::cut_bits:
      unit.entry = "cut_bits";
      unit.args = "CutBitsArgs";
      unit.threads = tile_lists::kOrderThreads;
      unit.shared_bytes = tile_lists::kOrderBytes;
      unit = with_functions(std::move(unit), p, "");
      unit.prelude += "#include \"cuda/tile/expression_ranges.cuh\"\n" +
                      mask_ranges_text(*p.mask_function.program, mask_name(p));
      break;
    case Work::order:
      unit.entry = "order";
      unit.args = "OrderArgs";
      unit.threads = tile_lists::kOrderThreads;
      unit.shared_bytes = tile_lists::kOrderBytes;
      break;
  }
  unit.file = "tile_lists/" + unit.entry;
  return unit;
}

TileListsMaker::TileListsMaker(const Problem& p, const WantedLists& wanted)
    : problem_(p), wanted_(wanted) {
  if (wanted.kind == tile::Lists::none) return;
  if (p.block_list.defined()) take_list();
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
  count_lists();
  args_.rows = static_cast<int>(ceil_div(p.seq_q, wanted.tile_q));
  args_.words = static_cast<int>(ceil_div(ceil_div(p.seq_k, wanted.tile_k), 32));
  args_.all_rows = static_cast<int>(lists_ * args_.rows);
  heads_ = static_cast<int>(wanted.packs_heads ? p.heads_k : p.heads_q);
  sharing_ = static_cast<int>(p.batch * heads_ / std::max<std::int64_t>(1, lists_));
  order_.rows = args_.rows;
  order_.rows_of_tile = wanted.rows_of_tile;
  order_.tiles = static_cast<int>(ceil_div(args_.rows, wanted.rows_of_tile));
  order_.entries = static_cast<int>(lists_ * order_.tiles);
  count_shown();
  transpose_.rows = args_.rows;
  transpose_.words = args_.words;
  transpose_.to_rows = static_cast<int>(ceil_div(p.seq_k, wanted.tile_k));
  transpose_.to_words = static_cast<int>(ceil_div(args_.rows, 32));
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
  args_.shift_q = std::countr_zero(static_cast<std::uint64_t>(list.block_q));
  args_.shift_k = std::countr_zero(static_cast<std::uint64_t>(list.block_k));
  args_.query_blocks = static_cast<int>(ceil_div(problem_.seq_q, list.block_q));
  args_.key_blocks = static_cast<int>(ceil_div(problem_.seq_k, list.block_k));
  args_.block_words = static_cast<int>(ceil_div(args_.key_blocks, 32));
}

/// Entries of the batch and heads that see the same tiles share a list.
void TileListsMaker::count_lists() {
  const Problem& p = problem_;
  // Lengths cut the list of each batch entry differently.
  bool of_batch = p.key_lengths.defined() || p.packed, of_heads = false;
  if (p.block_list.defined()) {
    of_batch = of_batch || p.block_list.row_offsets.sizes[0] > 1;
    of_heads = p.block_list.row_offsets.sizes[1] > 1;
  } else if (p.mask_function.defined()) {
    const expression::Program& mask = *p.mask_function.program;
    const unsigned depends = mask.nodes[static_cast<std::size_t>(mask.result)].depends;
    of_batch = of_batch || (depends & expression::kBatch) != 0;
    of_heads = (depends & expression::kHead) != 0;
  }
  if (narrows()) {
    of_batch = of_batch || (p.mask.strides[0] != 0 && p.batch > 1);
    of_heads = of_heads || (p.mask.strides[1] != 0 && p.heads_q > 1);
  }
  args_.list_heads = of_heads ? static_cast<int>(p.heads_q) : 1;
  list_h_ = of_heads ? 1 : 0;
  list_b_ = of_batch ? args_.list_heads : 0;
  lists_ = (of_batch ? p.batch : 1) * args_.list_heads;
}

/// Bits that one head reads are not worth a kernel, and they must not grow with the square of the
/// length.
void TileListsMaker::count_shown() {
  constexpr std::int64_t kMostWords = std::int64_t{1} << 23;
  const bool mapped = problem_.mask_function.defined() && !problem_.block_list.defined();
  if (!mapped || sharing_ < 2) return;
  const std::int64_t rows = std::max<std::int64_t>(1, lists_ * args_.rows);
  const std::int64_t most = kMostWords / (rows * tile_words());
  shown_most_ = static_cast<int>(std::min<std::int64_t>(wanted_.shows_cut, most));
}

void TileListsMaker::add_memory(std::vector<MemoryPart>& items) const {
  if (wanted_.kind == tile::Lists::none) return;
  const auto add = [&](const char* name, std::int64_t words) {
    items.push_back(memory_part(name, Role::workspace, DType::int32, {words}));
  };
  add("tiles listed", bit_words());
  add("counts of tiles", lists_ * args_.rows * 2);
  if (wanted_.kind == tile::Lists::parts) add("blocks listed", listed_words());
  if (wanted_.ordered) add("order of rows", order_.entries + tile::kListClasses);
  if (shown_most_ > 0) add("pairs of cut tiles", shown_words());
  if (wanted_.by_keys) {
    add("tiles listed, transposed", key_bit_words());
    add("counts of tiles, transposed", lists_ * transpose_.to_rows * 2);
  }
}

void TileListsMaker::take(WorkspaceCutter& workspace) {
  if (wanted_.kind == tile::Lists::none) return;
  args_.bits = workspace.take<unsigned>(bit_words());
  args_.counts = workspace.take<int>(lists_ * args_.rows * 2);
  if (wanted_.kind == tile::Lists::parts) args_.listed = workspace.take<unsigned>(listed_words());
  if (wanted_.ordered) {
    order_.order = workspace.take<int>(order_.entries + tile::kListClasses);
    order_.classes = order_.order + order_.entries;
    order_.counts = args_.counts;
  }
  if (shown_most_ > 0) shown_ = workspace.take<unsigned>(shown_words());
  if (wanted_.by_keys) {
    transpose_.bits = args_.bits;
    transpose_.to_bits = workspace.take<unsigned>(key_bit_words());
    transpose_.to_counts = workspace.take<int>(lists_ * transpose_.to_rows * 2);
  }
}

tile::TileLists TileListsMaker::of_queries() const {
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
          .shown = shown_,
          .shown_most = shown_most_,
          .order = order_.order,
          .classes = order_.classes,
          .tiles = order_.tiles,
          .sharing = sharing_,
          .heads = heads_,
          .taken = taken_};
}

tile::TileLists TileListsMaker::of_keys() const {
  tile::TileLists made = of_queries();
  made.bits = transpose_.to_bits;
  made.counts = transpose_.to_counts;
  made.rows = transpose_.to_rows;
  made.words = transpose_.to_words;
  return made;
}

/// The caller's list or the mask function.
ListsStep TileListsMaker::rows_step() const {
  ListsStep step = {.blocks = lists_ * args_.rows, .args = args_};
  Config& config = step.kernel.config;
  config.tile_q = wanted_.tile_q;
  config.tile_k = wanted_.tile_k;
  if (problem_.block_list.defined()) {
    config.parts = wanted_.kind == tile::Lists::parts;
    const std::int64_t bytes =
        tile_lists::list_bytes(wanted_.tile_q, args_.shift_q, args_.block_words);
    while (config.rows > 1 && config.rows * bytes > kSharedOfRows) config.rows /= 2;
    config.shared_bytes = shared_bytes(config.rows * bytes, 1024);
    step.blocks = ceil_div(step.blocks, config.rows);
  } else {
    step.kernel.work = Work::from_function;
    step.args = tile_lists::FunctionArgs{args_, taken_};
    config.tells_placed = wanted_.tells_placed;
    config.shared_bytes = shared_bytes(tile_lists::row_bytes(args_.words), 1024);
  }
  return step;
}

ListsStep TileListsMaker::mask_step(const tile::MaskBits& mask) const {
  tile_lists::MaskArgs args = {.of = args_, .mask = mask};
  args.listed = problem_.block_list.defined() || problem_.mask_function.defined();
  if (wanted_.by_keys) {
    args.of.rows = transpose_.to_rows;
    args.of.words = transpose_.to_words;
    args.of.bits = transpose_.to_bits;
    args.of.counts = transpose_.to_counts;
  }
  const int bytes = shared_bytes(tile_lists::row_bytes(args.of.words), 1024);
  const Config config = {.tile_q = wanted_.tile_q,
                         .tile_k = wanted_.tile_k,
                         .by_keys = wanted_.by_keys,
                         .shared_bytes = bytes};
  return {{Work::from_mask, config}, lists_ * args.of.rows, args};
}

/// The order, and beside it the pairs of cut tiles, which take no launch more.
ListsStep TileListsMaker::order_step() const {
  const bool several = wanted_.rows_of_tile > 1;
  if (shown_most_ == 0) return {{Work::order, {.parts = several}}, 1, order_};
  const tile_lists::CutBitsArgs args = {
      .of = {args_, taken_}, .order = order_, .most = shown_most_, .shown = shown_};
  return {{Work::cut_bits, {.tile_q = wanted_.tile_q, .tile_k = wanted_.tile_k, .parts = several}},
          1 + lists_ * args_.rows * tile_lists::kCutBlocks,
          args};
}

ListsStep TileListsMaker::transpose_step(const tile_lists::TransposeArgs& args) const {
  const bool tells = wanted_.tells_placed && !problem_.block_list.defined();
  return {{Work::transpose, {.tells_placed = tells}}, lists_ * args.words, args};
}

/// Rows of queries from those of keys.
tile_lists::TransposeArgs TileListsMaker::way_back() const {
  return {.bits = transpose_.to_bits,
          .rows = transpose_.to_rows,
          .words = transpose_.to_words,
          .to_bits = args_.bits,
          .to_counts = args_.counts,
          .to_rows = args_.rows,
          .to_words = args_.words};
}

std::vector<ListsStep> TileListsMaker::steps(const tile::MaskBits& mask) const {
  std::vector<ListsStep> steps;
  if (wanted_.kind == tile::Lists::none) return steps;
  if (problem_.block_list.defined() || problem_.mask_function.defined()) {
    steps.push_back(rows_step());
    if (wanted_.by_keys) steps.push_back(transpose_step(transpose_));
  }
  if (narrows()) {
    steps.push_back(mask_step(mask));
    if (wanted_.by_both) steps.push_back(transpose_step(way_back()));
  }
  if (wanted_.ordered) steps.push_back(order_step());
  return steps;
}

void TileListsMaker::start(const ListsStep& step, void* stream) const {
  const int device = problem_.device.index;
  const auto unit = [&](const ListsKernel& kernel) { return lists_unit(problem_, kernel); };
  if (step.kernel.work == Work::from_function) {
    const Kernel kernel = load_by_key(expressions_key(problem_), step.kernel, device, unit);
    launch_expressed(
        problem_, kernel,
        taken_ == nullptr ? Grid{.x = step.blocks} : host::following(step.blocks, device), stream,
        std::get<tile_lists::FunctionArgs>(step.args));
    return;
  }
  if (step.kernel.work == Work::cut_bits) {
    const Kernel kernel = load_by_key(expressions_key(problem_), step.kernel, device, unit);
    launch_expressed(problem_, kernel, host::following(step.blocks, device), stream,
                     std::get<tile_lists::CutBitsArgs>(step.args));
    return;
  }
  const Kernel kernel = host::load_config(step.kernel, device, unit);
  const Grid grid = step.kernel.work == Work::from_list ? Grid{.x = step.blocks}
                                                        : host::following(step.blocks, device);
  std::visit([&](const auto& args) { launch(kernel, grid, stream, args); }, step.args);
}

void TileListsMaker::make(void* stream, const tile::MaskBits& mask) const {
  for (const ListsStep& step : steps(mask)) start(step, stream);
}

}  // namespace tilewise::cuda
