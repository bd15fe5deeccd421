#include "cuda/kernels/decode_sm90/items.h"

#include <algorithm>

#include "cuda/host/common.h"
#include "cuda/host/constants.h"
#include "cuda/host/fill.h"
#include "cuda/host/options.h"
#include "cuda/host/served.h"
#include "cuda/host/tile_counter.h"
#include "cuda/kernels/rows/combine.h"
#include "plan/accounting.h"
#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

/// What createpolicy.fractional gives for evict_last. NOTE: evict_first loses half-lines that are
/// fetched ahead for the neighbouring box.
constexpr unsigned long long kKeepInCache = 0x14F0000000000000ULL;

tile::View view(const Tensor& t) { return {t.data, t.strides[0], t.strides[1], t.strides[2]}; }

/// As part_range() of tile/key_parts.cuh counts, of an entry with all its keys; the most of any
/// where lengths are on the device.
int most_parts(const Problem& p, std::int64_t keys) {
  if (p.key_lengths.defined()) {
    // Visible keys may begin anywhere in a part.
    const std::int64_t cut = host::most_keys(p) < p.seq_k ? 1 : 0;
    return static_cast<int>(
        std::min(ceil_div(p.seq_k, keys), ceil_div(host::most_keys(p), keys) + cut));
  }
  const std::int64_t shift = p.seq_k - p.seq_q;
  std::int64_t above = shift + p.right + 1;
  if (p.causal == Causal::top_left) above = std::min<std::int64_t>(above, 1);
  const std::int64_t begin = std::max<std::int64_t>(0, shift - p.left);
  const std::int64_t end = std::min(p.seq_k, p.seq_q - 1 + above);
  return end <= begin ? 1 : static_cast<int>(ceil_div(end, keys) - begin / keys);
}

tile::KeyParts key_parts(const Problem& p, int keys) {
  tile::KeyParts parts;
  parts.keys = keys;
  host::fill_key_lengths(parts, p);
  parts.seq_q = static_cast<int>(p.seq_q);
  parts.seq_k = static_cast<int>(p.seq_k);
  parts.positions = host::positions(p);
  return parts;
}

}  // namespace

std::string items_refusal(const Problem& p) {
  // A part of which no key is seen would look its first key's page up, far behind the table.
  if (p.paged && p.left < 0)
    return "pages under a window that begins behind the diagonal are not supported by this kernel";
  return "";
}

double item_count(const Problem& p, const ItemParts& items) {
  return static_cast<double>(p.batch * p.heads_k) * items.row_tiles * items.most_parts;
}

ItemParts item_parts(const Problem& p, int row_tiles, std::int64_t keys) {
  ItemParts items;
  items.row_tiles = row_tiles;
  items.keys = static_cast<int>(round_up(std::min(keys, p.seq_k), decode_sm90::kBlockN));
  items.most_parts = most_parts(p, items.keys);
  return items;
}

double key_bytes(const Problem& p, std::int64_t columns) {
  const double keys = static_cast<double>(p.batch * p.heads_k) *
                      std::min(visible_pairs(p) / static_cast<double>(p.query_rows()) +
                                   static_cast<double>(p.seq_q),
                               static_cast<double>(p.seq_k));
  return 2.0 * keys * static_cast<double>(columns);
}

void fill_items(decode_sm90::Args& args, const Problem& p, const ItemParts& items) {
  args.q = view(p.q);
  args.k = view(p.k);
  args.v = view(p.v);
  args.o = host::view4(p.o);
  args.o_pairs = host::has_vectors(p.o);
  host::fill_lse_output(args, p);
  args.batch = static_cast<int>(p.batch);
  args.heads_q = static_cast<int>(p.heads_q);
  args.heads_k = static_cast<int>(p.heads_k);
  args.group = static_cast<int>(p.group());
  args.head_dim_v = static_cast<int>(p.head_dim_v);
  args.cols_q = static_cast<int>(p.q.sizes[3]);
  args.cols_k = static_cast<int>(p.k.sizes[3]);
  args.cols_v = static_cast<int>(p.v.sizes[3]);
  args.row_tiles = items.row_tiles;
  args.policy = kKeepInCache;
  args.scale = p.scale;
  args.scale_log2 = static_cast<float>(static_cast<double>(p.scale) * kLog2e);
  args.softcap = static_cast<float>(p.softcap);
  host::fill_alibi(args, p);
  host::fill_sinks(args, p);
  if (p.paged) args.pages = host::pages(p);
  if (p.tree.defined()) args.tree = tree_words(p);
  args.keys = key_parts(p, items.keys);
  args.most_parts = items.most_parts;
  args.part_rows = p.query_rows();
  args.part_columns = host::padded(p.head_dim_v);
}

void add_items_memory(std::vector<MemoryPart>& memory, const Problem& p, const ItemParts& items) {
  memory.push_back(host::tile_counter_memory());
  if (items.most_parts > 1) add_partial_results(memory, p, items.most_parts);
}

void launch_items(const Kernel& kernel, decode_sm90::Args& args, const Problem& p,
                  const ItemParts& items, std::int64_t blocks, const Context& context) {
  const int parts = items.most_parts;
  WorkspaceCutter workspace(context.workspace);
  args.counter = host::take_tile_counter(workspace);
  PartialResults partial;
  if (parts > 1) partial = take_partial_results(workspace, p, parts);
  args.o_part = partial.o;
  args.m_part = partial.statistics;
  const std::int64_t all = p.batch * p.heads_k * items.row_tiles * parts;
  launch(kernel, {.x = std::min(all, blocks)}, context.stream, args);
  if (parts == 1) return;
  combine_parts(p, partial, parts, context.stream, p.key_lengths.defined() ? &args.keys : nullptr);
}

}  // namespace tilewise::cuda
