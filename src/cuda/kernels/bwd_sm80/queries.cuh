/// bwd_dq_sm80: dQ by tiles, the second pass of the backward whose first is bwd_sm80 without dQ.
/// Together they add in a fixed order: bitwise repeatable. sm_80 and newer.
///
///   P = exp(S - LSE); dP = dO V^T; dS = P (dP - delta); dQ = scale dS K (B1-B8)
///
/// One block owns block_m queries of one head and walks over the keys; a warp owns whole queries,
/// and dS goes from the accumulators into the A operand without leaving the registers. See
/// bwd_sm80/README.md.
#pragma once

#include "cuda/kernels/bwd_sm80/query_tiles.cuh"
#include "cuda/kernels/bwd_sm80/refine.cuh"

namespace tilewise::bwd_dq_sm80 {

/// The block of this thread block, and the blocks of keys that its rows see.
template <Config kConfig>
struct Work {
  QueryGradient<kConfig> block;
  BlockRange range;

  __forceinline__ Work(const Args& args, u32 shared, const TileIndex& tile,
                       const Captures* captures = nullptr)
      : block(args, shared, tile, keys_of(args, tile.bh / args.heads_q)) {
    block.captures = captures;
    const int row_end = min(block.row + kConfig.shape.block_m, args.seq_q);
    range = key_blocks<kConfig.shape.block_n>(block.diagonals, block.row, row_end, block.seq_k);
    if constexpr (kConfig.split) {
      const int blocks = args.keys_per_split / kConfig.shape.block_n;
      range.clip(tile.split * blocks, (tile.split + 1) * blocks);
    }
  }
};

template <Config kConfig>
__forceinline__ void differentiate(const Args& args, const TileIndex& tile,
                                   const Captures* captures) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Work<kConfig> work(args, shared_address(shared), tile, captures);
  if (work.range.begin < work.range.end) work.block.run(work.range);
  let_next_start();
  work.block.finish();
}

/// What rounding took from lse2 and delta. Rows whose lse2 is small may keep what bwd_delta wrote.
template <Config kConfig>
__forceinline__ void refine_tile(const Args& args, const TileIndex& tile,
                                 const Captures* captures) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Work<kConfig> work(args, shared_address(shared), tile, captures);
  constexpr bool kMayLeave = kConfig.form.planes == 2 || kConfig.shifts();
  if (!kMayLeave || __syncthreads_or(work.block.is_coarse()))
    Refinement<kConfig>{work.block}.run(work.range);
}

/// Calls `compute` with the arguments and the tile of a block, a packed sequence's own ones.
template <Config kConfig, class AnyArgs, class Compute>
__forceinline__ void with_tile(const AnyArgs& any, Compute compute) {
  if constexpr (kConfig.packed) {
    const RaggedArgs& ragged = plain_args(any);
    Args args = ragged.args;
    TileIndex tile = tile_index(args.order, blockIdx.x);
    wait_for_previous();  // for packed operands, lse2 and delta
    if (bwd_sm80::enter_queries<kConfig>(ragged, args, tile)) compute(args, tile);
  } else {
    const Args& args = plain_args(any);
    const TileIndex tile = tile_index(args.order, blockIdx.x);
    wait_for_previous();  // for packed operands, lse2 and delta
    compute(args, tile);
  }
}

template <Config kConfig, class AnyArgs>
__forceinline__ void kernel(const AnyArgs& any) {
  with_tile<kConfig>(any, [&](const Args& args, const TileIndex& tile) {
    differentiate<kConfig>(args, tile, captures_of(any));
  });
}

template <Config kConfig, class AnyArgs>
__forceinline__ void refine(const AnyArgs& any) {
  with_tile<kConfig>(any, [&](const Args& args, const TileIndex& tile) {
    refine_tile<kConfig>(args, tile, captures_of(any));
  });
}

}  // namespace tilewise::bwd_dq_sm80
