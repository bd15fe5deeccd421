#include "cuda/kernels/decode_sm90/fill.h"

#include "cuda/host/tma_maps.h"

namespace tilewise::cuda {

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
  fill_items(args, p, choice.items);
}

}  // namespace tilewise::cuda
