/// bwd_sm80: from the sums of a block of keys to dK and dV, or to the sums of its part.
#pragma once

#include "cuda/kernels/bwd_sm80/keys_shape.cuh"

namespace tilewise::bwd_sm80 {
using namespace tile;

/// `b`: Backward<kConfig>, whose warps have dK and dV in fragments.
template <Config kConfig, class Block>
__forceinline__ void store_gradients(const Block& b) {
  using Shape = KeyShape<kConfig>;
  constexpr Element kElement = kConfig.form.element;
  constexpr int kD = kConfig.head_dim, kDv = kConfig.head_dim_v;
  constexpr int kColsK = Shape::kColsK / kConfig.shape.column_warps;
  constexpr int kColsV = Shape::kColsV / kConfig.shape.column_warps;
  const Args& args = b.args;
  const int first = b.key + b.warp_key();
  const int col_k = b.column_warp() * kColsK, col_v = b.column_warp() * kColsV;
  if constexpr (kConfig.split && kConfig.output.with_dq) {
    const i64 at = static_cast<i64>(b.tile.bh) * args.rows_k;
    add_fragments(b.rK, args.dk_sum + at * kD, first, col_k, kD, b.lane);
    add_fragments(b.rV, args.dv_sum + at * kDv, first, col_v, kDv, b.lane);
  } else if constexpr (kConfig.split) {
    // A sum for each part: bwd_convert adds them in their order.
    const i64 at = (static_cast<i64>(b.tile.split) * args.order.heads + b.tile.bh) * args.rows_k;
    if constexpr (Shape::kWithK)
      store_fragments(b.rK, args.dk_sum + at * kD, first, col_k, kD, b.lane);
    if constexpr (Shape::kWithV)
      store_fragments(b.rV, args.dv_sum + at * kDv, first, col_v, kDv, b.lane);
  } else if constexpr (kConfig.form.scaled) {
    if constexpr (Shape::kWithK) {
      store_float_rows(b.rK, args.scale, b.template output<float>(args.dk), args.dk,
                       args.dk_vectors, first, args.seq_k, 0, args.head_dim, b.lane);
    }
    if constexpr (Shape::kWithV) {
      store_float_rows(b.rV, 1.0F, b.template output<float>(args.dv), args.dv, args.dv_vectors,
                       first, args.seq_k, 0, args.head_dim_v, b.lane);
    }
  } else {
    // Through shared memory, where K and V were, so that a lane stores 16 bytes of a row.
    const SharedTile<kConfig.shape.block_n, Shape::kColsK> out_k{b.shared};
    const SharedTile<kConfig.shape.block_n, Shape::kColsV> out_v{b.shared + Shape::TileK::kBytes};
    __syncthreads();  // all warps are done with K and V
    if constexpr (Shape::kWithK)
      stage_rows<kElement>(b.rK, args.scale, out_k, b.warp_key(), col_k, b.lane);
    if constexpr (Shape::kWithV)
      stage_rows<kElement>(b.rV, 1.0F, out_v, b.warp_key(), col_v, b.lane);
    __syncthreads();  // both are complete
    constexpr int kRows = kConfig.shape.block_n / kConfig.shape.warps;
    const int row = b.warp * kRows;
    if constexpr (Shape::kWithK) {
      store_rows<kRows, Shape::kColsK>(out_k, row, b.template output<unsigned short>(args.dk),
                                       args.dk, args.dk_vectors, b.key + row, args.seq_k,
                                       args.head_dim, b.lane);
    }
    if constexpr (Shape::kWithV) {
      store_rows<kRows, Shape::kColsV>(out_v, row, b.template output<unsigned short>(args.dv),
                                       args.dv, args.dv_vectors, b.key + row, args.seq_k,
                                       args.head_dim_v, b.lane);
    }
  }
}

}  // namespace tilewise::bwd_sm80
