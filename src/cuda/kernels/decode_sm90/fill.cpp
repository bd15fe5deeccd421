#include "cuda/kernels/decode_sm90/fill.h"

#include <algorithm>

#include "cuda/host/common.h"
#include "cuda/host/constants.h"
#include "cuda/host/fill.h"
#include "cuda/host/options.h"
#include "cuda/host/tma_maps.h"

namespace tilewise::cuda {
namespace {

/// What createpolicy.fractional gives for evict_last. NOTE: evict_first loses half-lines that are
/// fetched ahead for the neighbouring box.
constexpr unsigned long long kKeepInCache = 0x14F0000000000000ULL;

tile::View view(const Tensor& t) { return {t.data, t.strides[0], t.strides[1], t.strides[2]}; }

}  // namespace

void decode_fill(decode_sm90::Args& args, const Problem& p, const DecodeChoice& choice,
                 void (*set_map)(tile::TensorMapBytes&, const TensorMapSpec&)) {
  const int rows = choice.config.box_rows;
  if (rows > 0) {
    const auto map = [&](const Tensor& t, int columns) {
      TensorMapSpec spec = choice.config.whole_rows
                               ? sm90_row_map(t, rows, decode_sm90::panels_beside(columns / 64))
                               : sm90_map_spec(t, rows);
      spec.promotion = TensorMapSpec::Promotion::bytes128;
      return spec;
    };
    set_map(args.k_map, map(p.k, choice.config.head_dim));
    set_map(args.v_map, map(p.v, choice.config.head_dim_v));
  }
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
  args.row_tiles = choice.row_tiles;
  args.policy = kKeepInCache;
  args.scale = p.scale;
  args.scale_log2 = static_cast<float>(static_cast<double>(p.scale) * kLog2e);
  args.softcap = static_cast<float>(p.softcap);
  host::fill_alibi(args, p);
  host::fill_sinks(args, p);
  if (p.paged) args.pages = host::pages(p);
  if (p.tree.defined()) args.tree = tree_words(p);
  args.keys = decode_key_parts(p, choice.keys);
  args.most_parts = choice.most_parts;
  args.part_rows = p.query_rows();
  args.part_columns = host::padded(p.head_dim_v);
}

}  // namespace tilewise::cuda
