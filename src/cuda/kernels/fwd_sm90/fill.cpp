#include "cuda/kernels/fwd_sm90/fill.h"

#include "cuda/host/common.h"
#include "cuda/host/constants.h"
#include "cuda/host/fill.h"
#include "cuda/host/sequences.h"
#include "cuda/host/sm90_mask.h"
#include "cuda/host/tma_maps.h"
#include "cuda/kernels/fwd_sm90/tiles.h"

namespace tilewise::cuda {
namespace {

using fwd_sm90::Args;
using fwd_sm90::Config;
using fwd_sm90::Lengths;
using fwd_sm90::PagedArgs;
using SetMap = void (*)(tile::TensorMapBytes&, const TensorMapSpec&);

/// Axes {D, Hq, S, B} to {D, head in group, Hk, S, B}: a box takes 2^shift heads.
TensorMapSpec grouped_map(TensorMapSpec spec, std::int64_t group, int shift) {
  spec.rank = 5;
  spec.sizes = {spec.sizes[0], group, spec.sizes[1] / group, spec.sizes[2], spec.sizes[3]};
  spec.strides = {0, spec.strides[1], spec.strides[1] * group, spec.strides[2], spec.strides[3]};
  spec.box = {spec.box[0], 1 << shift, 1, spec.box[2], 1};
  return spec;
}

tile::View view(const Tensor& t) { return {t.data, t.strides[0], t.strides[1], t.strides[2]}; }

void fill_maps(Args& args, const Problem& p, const Config& config, int shift, SetMap set_map) {
  const bool shares_rows = p.packed && !config.documents;
  const auto query_map = [&](const Tensor& t) {
    const TensorMapSpec spec = sm90_map_spec(t, 64 >> shift, shares_rows);
    if (p.packed) return sm90_ragged_map(spec, p.total_q, 1 << shift);
    return shift > 0 ? grouped_map(spec, p.group(), shift) : spec;
  };
  const auto key_map = [&](const Tensor& t) {
    // Tiles of one warpgroup are for few queries, but for those of lists: they take as long as
    // memory does, which gives up to 6 % more where L2 fetches no more than it is asked for.
    const bool few = config.shape.warpgroups == 1 && config.lists == fwd_sm90::Lists::none;
    const auto promotion =
        few ? TensorMapSpec::Promotion::bytes128 : TensorMapSpec::Promotion::bytes256;
    if (p.paged) {
      TensorMapSpec spec = sm90_map_spec(t, fwd_sm90_box_rows(p, config.shape.block_n));
      spec.promotion = promotion;
      return sm90_ragged_map(spec, p.page_size, 1);
    }
    TensorMapSpec spec = sm90_map_spec(t, config.shape.block_n, shares_rows);
    spec.promotion = promotion;
    return config.lengths == Lengths::dense ? spec : sm90_ragged_map(spec, args.k_rows, 1);
  };
  set_map(args.q, query_map(p.q));
  set_map(args.k, key_map(p.k));
  set_map(args.v, key_map(p.v));
  set_map(args.o, query_map(p.o));
}

void fill_modification(Args& args, const Problem& p) {
  args.scale_inverse = 1.0F / args.scale_log2;
  if (p.softcap != 0.0) {
    const double ratio = p.scale / p.softcap;
    args.scale_cap = host::finite(ratio);
    args.cap_log2 = static_cast<float>(p.softcap * kLog2e);
    args.cap_raw = static_cast<float>(1.0 / ratio);
    args.cap_slope = static_cast<float>(2.0 * kLog2e * ratio);
    args.cap_narrow = static_cast<float>(tile::SoftcapSeries::kBound / ratio);
    const double square = ratio * ratio, scale_log2 = p.scale * kLog2e;
    args.cap_1 = static_cast<float>(scale_log2 * tile::SoftcapSeries::k1 * square);
    args.cap_2 = static_cast<float>(scale_log2 * tile::SoftcapSeries::k2 * square * square);
    args.cap_cubic = static_cast<float>(tile::SoftcapCubic::kBound / ratio);
    args.cubic_0 = static_cast<float>(scale_log2 * tile::SoftcapCubic::k0);
    args.cubic_1 = static_cast<float>(scale_log2 * tile::SoftcapCubic::k1 * square);
  }
  host::fill_alibi(args, p);
}

}  // namespace

std::string sm90_maps_refusal(const Problem& p) {
  std::string reason = sm90_map_refusal("q", p.q, Sm90Access::read, p.packed);
  if (reason.empty()) reason = sm90_map_refusal("k", p.k, Sm90Access::read, p.packed_keys());
  if (reason.empty()) reason = sm90_map_refusal("v", p.v, Sm90Access::read, p.packed_keys());
  if (reason.empty()) reason = sm90_map_refusal("o", p.o, Sm90Access::write, p.packed);
  return reason;
}

void fwd_sm90_fill(PagedArgs& args, const Problem& p, const Config& config, int shift,
                   SetMap set_map) {
  if (p.paged) {
    args.pages = host::pages(p);
    args.box_rows = fwd_sm90_box_rows(p, config.shape.block_n);
    args.k_pages = view(p.k);
    args.v_pages = view(p.v);
    args.columns_k = static_cast<int>(p.k.sizes[3]);
    args.columns_v = static_cast<int>(p.v.sizes[3]);
  }
  host::fill_sm90_lengths(args, p);
  fill_maps(args, p, config, shift, set_map);
  args.heads_q = static_cast<int>(p.heads_q);
  args.group = static_cast<int>(p.group());
  args.tile_heads = static_cast<int>(config.pack_heads ? p.heads_k : p.heads_q);
  args.pack_shift = shift;
  args.seq_q = static_cast<int>(p.seq_q);
  args.seq_k = static_cast<int>(p.seq_k);
  args.scale_log2 = static_cast<float>(static_cast<double>(p.scale) * kLog2e);
  fill_modification(args, p);
  host::fill_lse_output(args, p);
  const Sm90Mask mask = sm90_mask(p);
  args.low = mask.low;
  args.high = mask.high;
  args.top = mask.top;
}

}  // namespace tilewise::cuda
