/// bwd_captures_sm80: gradients of the tensors that a score function captures. sm_80 and newer.
///
///   P = exp(S - LSE); dP = dO V^T; dX = P (dP - delta) (B1, B4 to B6); d tensor[index] += dX
///   d function / d tensor[index], where the pair is visible
///
/// One block owns block_m queries of one head and walks over the keys, with the tiles and the score
/// steps of bwd_dq_sm80. A thread sums what falls on one element in a register as long as it stays
/// the same, then adds it to memory: in any order, which an exact sum does not show. See
/// bwd_sm80/captures.md.
#pragma once

#include "cuda/kernels/bwd_sm80/capture_blocks_args.h"
#include "cuda/kernels/bwd_sm80/moving_sum.cuh"
#include "cuda/kernels/bwd_sm80/queries.cuh"

namespace tilewise::bwd_captures_sm80 {

using namespace tile;
using bwd_sm80::Args;
using bwd_sm80::Config;
using bwd_sm80::MovingSum;
using bwd_sm80::RaggedArgs;

/// Half-open, of indices along an axis.
struct Span {
  int begin, end;
  /// To those whose index / per is `index`; the last index takes the rest.
  __forceinline__ void narrow(int index, int per, bool last) {
    begin = max(begin, index * per);
    if (!last) end = min(end, (index + 1) * per);
  }
};

/// kOwned: only pairs of `queries` and `keys` count.
template <Config kConfig, bool kOwned = false>
struct CaptureGradients {
  using Tiles = bwd_dq_sm80::QueryGradient<kConfig>;
  using Function = ScoreFunction<kConfig.expressions.score>;
  static constexpr int kBlockN = kConfig.shape.block_n, kM = Tiles::kM, kN = Tiles::kN;
  static constexpr bool kInLog2 = kConfig.modified || kConfig.pairs.bias != BiasType::none;
  static_assert(!kConfig.split);

  Tiles& tiles;
  Span queries = {}, keys = {};
  MovingSum<Function::kExact> sums[Function::kTerms];

  __forceinline__ explicit CaptureGradients(Tiles& t) : tiles(t) {}

  /// (F1 to F3) X becomes the natural logits before the function.
  __forceinline__ void before_function(Acc (&X)[kM][kN], float factor, int key) const {
    const Args& args = tiles.args;
    const ScoreModification mod(args, factor, tiles.batch, tiles.head);
    if constexpr (kConfig.modified) {
      modify_scores(X, mod, tiles.warp_row(), key, tiles.seq_k - args.seq_q, tiles.lane);
    } else {
      multiply(X, kInLog2 ? mod.scale * kLog2e : mod.scale);
    }
    if constexpr (kConfig.pairs.any()) tiles.pairs().add_to(X, tiles.corner(key));
    if constexpr (kInLog2) multiply(X, kLn2);
  }

  /// The keys in stage 0, from `key` on.
  __forceinline__ void add_block(int key) {
    constexpr Element kElement = kConfig.form.element;
    const Args& args = tiles.args;
    const typename Tiles::Pairs::Shown shown = tiles.pairs().shown(tiles.corner(key));
    if (!shown.some) return;
    float k_scale = 1.0F, v_scale = 1.0F;
    if constexpr (kConfig.form.scaled) {
      k_scale = args.k_scale[tiles.key_scale_index(key)];
      v_scale = args.v_scale[tiles.key_scale_index(key)];
    }
    const typename Tiles::Kept kept = tiles.kept_pairs(key);
    const int row = tiles.warp * Tiles::kRows;
    Acc X[kM][kN], S[kM][kN], dX[kM][kN];
    clear(X);
    clear(dX);
    product_rows<kElement>(X, tiles.sQ(), row, tiles.sK(0), 0, tiles.lane);   // (F1)
    product_rows<kElement>(dX, tiles.sO(), row, tiles.sV(0), 0, tiles.lane);  // (B4)
    kept.drop(dX, args.dropout.scale);
    before_function(X, k_scale * tiles.q_scale, key);
    copy(S, X);
    apply_score_function<kConfig.expressions.score, false, kConfig.pairs.bias != BiasType::none>(
        S, 1.0F, tiles.corner(key), *tiles.captures, opaque(tiles.lane));
    tiles.subtract_lse2(S);
    tiles.hide(S, key, shown, true);
    tiles.mask(S, key);
    tiles.score_gradients(S, dX, 1.0F, v_scale * tiles.do_scale, true);  // (B5)
    if constexpr (kOwned) keep_owned(dX, key);
    add_terms(X, dX, key);
  }
  __forceinline__ void keep_owned(Acc (&dX)[kM][kN], int key) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = tiles.warp_row() + 16 * m + tiles.lane / 4 + 8 * (e / 2);
          const int j = key + 8 * n + 2 * (tiles.lane % 4) + e % 2;
          if (i < queries.begin || i >= queries.end || j < keys.begin || j >= keys.end)
            dX[m][n][e] = 0.0F;
        }
      }
    }
  }
  static __forceinline__ void copy(Acc (&to)[kM][kN], const Acc (&from)[kM][kN]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) to[m][n][e] = from[m][n][e];
      }
    }
  }

  /// Pairs of one row after the other, or of one column where the elements follow the keys.
  __forceinline__ void add_terms(const Acc (&X)[kM][kN], const Acc (&dX)[kM][kN], int key) {
    const PairCorner at = tiles.corner(key);
    const Captures& t = *tiles.captures;
    const Place place = place_of(at);
    const typename Function::Uniform u = Function::uniform(place, t);
    constexpr int kRowsOfThread = 2 * kM, kColumnsOfThread = 2 * kN;
    constexpr int kOuter = Function::kByKeys ? kColumnsOfThread : kRowsOfThread;
    constexpr int kInner = Function::kByKeys ? kRowsOfThread : kColumnsOfThread;
    Side<Function, true> of_query[kRowsOfThread];
    Side<Function, false> of_key[kColumnsOfThread];
#pragma unroll
    for (int r = 0; r < kRowsOfThread; ++r) of_query[r].set(at, u, 8 * r + tiles.lane / 4, t);
#pragma unroll
    for (int c = 0; c < kColumnsOfThread; ++c)
      of_key[c].set(at, u, 8 * (c / 2) + 2 * (tiles.lane % 4) + c % 2, t);
#pragma unroll
    for (int outer = 0; outer < kOuter; ++outer) {
#pragma unroll
      for (int inner = 0; inner < kInner; ++inner) {
        const int r = Function::kByKeys ? inner : outer, c = Function::kByKeys ? outer : inner;
        const float g = dX[r / 2][c / 2][2 * (r % 2) + c % 2];
        // Nothing comes through a hidden pair, an infinite derivative neither.
        if (g == 0.0F) continue;
        const int distance =
            at.query + 8 * r + tiles.lane / 4 - at.key - 8 * (c / 2) - 2 * (tiles.lane % 4) - c % 2;
        const auto diagonal =
            Function::diagonal(place, u, distance, static_cast<float>(distance), t);
        Function::terms(place, u, of_query[r].part, of_key[c].part, diagonal, of_query[r].index,
                        of_key[c].index, X[r / 2][c / 2][2 * (r % 2) + c % 2], t, g, sums);
      }
    }
  }

  __forceinline__ void take_block(int block) {
    __syncthreads();  // all warps are done with the K and V before
    tiles.load_keys(block, 0);
    tiles.pairs().load_async(tiles.corner(block * kBlockN));
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();  // K, V and the pairs have landed, for all threads
    add_block(block * kBlockN);
  }
  /// Those of a range that `keys` reaches, of one row block.
  __forceinline__ void run_owned(const BlockRange& range, int row_block) {
    const int end = min(range.end, (keys.end + kBlockN - 1) / kBlockN);
    bool there = false;
    for (int block = max(range.begin, keys.begin / kBlockN); block < end; ++block) {
      if constexpr (kConfig.listed()) {
        if (!is_listed(tiles.args.lists, tiles.list(), row_block, block)) continue;
      }
      if (!there) {
        __syncthreads();  // all warps are done with the Q and dO before
        tiles.read_low();
        tiles.load_queries();
        there = true;
      }
      take_block(block);
    }
  }
  __forceinline__ void run(const BlockRange& range) {
    tiles.read_low();
    tiles.load_queries();
    tiles.for_blocks(
        range, [](int) {}, [&](int block, int, bool) { take_block(block); });
#pragma unroll
    for (int n = 0; n < Function::kTerms; ++n) sums[n].finish(tiles.lane);
  }
};

template <Config kConfig, class AnyArgs>
__forceinline__ void kernel(const AnyArgs& any) {
  extern __shared__ __align__(1024) unsigned char shared[];
  bwd_dq_sm80::with_tile<kConfig>(any, [&](const Args& args, const TileIndex& tile) {
    bwd_dq_sm80::Work<kConfig> work(args, shared_address(shared), tile, captures_of(any));
    CaptureGradients<kConfig> gradients(work.block);
    if (work.range.begin < work.range.end) gradients.run(work.range);
  });
}

/// The gradient of a gate of blocks: a block walks over the pairs that fall on its element. Every
/// sum has one writer and a fixed order.
template <Config kConfig, class AnyArgs>
__forceinline__ void blocks(const AnyArgs& any) {
  static_assert(!kConfig.packed && ScoreFunction<kConfig.expressions.score>::kTerms == 1);
  extern __shared__ __align__(1024) unsigned char shared[];
  const BlockArgs& args = plain_args(any);
  const Captures* captures = captures_of(any);
  Span batches = {0, args.batch}, heads = {0, args.pass.heads_q};
  Span queries = {0, args.pass.seq_q}, keys = {0, args.pass.seq_k};
  int rest = static_cast<int>(blockIdx.x);
  for (int axis = 3; axis >= 0; --axis) {
    const int size = args.sizes[axis], index = rest % size;
    const bool last = index == size - 1;
    rest /= size;
    switch (args.axes[axis]) {
      case GateAxis::fixed:
        if (index != args.per[axis]) batches.end = 0;
        break;
      case GateAxis::batch:
        batches.narrow(index, 1, last);
        break;
      case GateAxis::head:
        heads.narrow(index, 1, last);
        break;
      case GateAxis::queries:
        queries.narrow(index, args.per[axis], last);
        break;
      case GateAxis::keys:
        keys.narrow(index, args.per[axis], last);
        break;
    }
  }
  constexpr int kBlockM = kConfig.shape.block_m;
  const int first = queries.begin / kBlockM, end = (queries.end + kBlockM - 1) / kBlockM;
  wait_for_previous();  // for packed operands, lse2 and delta
  float sum = 0.0F;
#pragma unroll 1
  for (int b = batches.begin; b < batches.end; ++b) {
#pragma unroll 1
    for (int h = heads.begin; h < heads.end; ++h) {
#pragma unroll 1
      for (int row = first; row < end; ++row) {
        bwd_dq_sm80::Work<kConfig> work(args.pass, shared_address(shared),
                                        {row, 0, b * args.pass.heads_q + h}, captures);
        CaptureGradients<kConfig, true> gradients(work.block);
        gradients.queries = queries;
        gradients.keys = keys;
        gradients.run_owned(work.range, row);
        sum += gradients.sums[0].sum;
      }
    }
  }
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
  __syncthreads();  // all warps are done with the operands
  const u32 parts = shared_address(shared);
  if (thread % 32 == 0)
    store_shared_4(parts + static_cast<u32>(thread / 8), static_cast<u32>(__float_as_int(sum)));
  __syncthreads();  // the sums of all warps are there
  if (thread > 0) return;
  float total = 0.0F;
  for (int w = 0; w < kConfig.shape.warps; ++w)
    total += load_shared_f32(parts + static_cast<u32>(4 * w));
  captures->at[args.capture].gradient[blockIdx.x] = total;
}

}  // namespace tilewise::bwd_captures_sm80
