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

#include "cuda/kernels/bwd_sm80/queries.cuh"
#include "cuda/tile/exact_sum.cuh"

namespace tilewise::bwd_captures_sm80 {

using namespace tile;
using bwd_sm80::Args;
using bwd_sm80::Config;
using bwd_sm80::RaggedArgs;

/// A sum that moves from element to element. kExact: memory has ExactSums.
template <bool kExact>
struct MovingSum {
  float* at = nullptr;
  float sum = 0.0F;

  __forceinline__ void add(float* to, float x) {
    if (to != at) {
      leave();
      at = to;
    }
    sum += x;
  }
  __forceinline__ void leave() {
    if constexpr (kExact) {
      if (sum != 0.0F) add_exactly(reinterpret_cast<u64*>(at), sum);
    } else {
      if (sum != 0.0F) atomicAdd(at, sum);
    }
    sum = 0.0F;
  }
  /// The last one, of all lanes together: one addition where they stand at the same element.
  __forceinline__ void finish(int lane) {
    const u64 place = reinterpret_cast<u64>(at);
    const int low = static_cast<int>(place), high = static_cast<int>(place >> 32);
    const int first_low = __shfl_sync(~0U, low, 0), first_high = __shfl_sync(~0U, high, 0);
    if (!__any_sync(~0U, low != first_low || high != first_high)) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
      if (lane > 0) sum = 0.0F;
    }
    leave();
  }
};

template <Config kConfig>
struct CaptureGradients {
  using Tiles = bwd_dq_sm80::QueryGradient<kConfig>;
  using Function = ScoreFunction<kConfig.expressions.score>;
  static constexpr int kBlockN = kConfig.block_n, kM = Tiles::kM, kN = Tiles::kN;
  static constexpr bool kInLog2 = kConfig.modified || kConfig.pairs.bias != BiasType::none;
  static_assert(!kConfig.split);

  Tiles& tiles;
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
    constexpr Element kElement = kConfig.element;
    const Args& args = tiles.args;
    const typename Tiles::Pairs::Shown shown = tiles.pairs().shown(tiles.corner(key));
    if (!shown.some) return;
    float k_scale = 1.0F, v_scale = 1.0F;
    if constexpr (kConfig.scaled) {
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
    add_terms(X, dX, key);
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
    Side<Function, true> queries[kRowsOfThread];
    Side<Function, false> keys[kColumnsOfThread];
#pragma unroll
    for (int r = 0; r < kRowsOfThread; ++r) queries[r].set(at, u, 8 * r + tiles.lane / 4, t);
#pragma unroll
    for (int c = 0; c < kColumnsOfThread; ++c)
      keys[c].set(at, u, 8 * (c / 2) + 2 * (tiles.lane % 4) + c % 2, t);
#pragma unroll
    for (int outer = 0; outer < kOuter; ++outer) {
#pragma unroll
      for (int inner = 0; inner < kInner; ++inner) {
        const int r = Function::kByKeys ? inner : outer, c = Function::kByKeys ? outer : inner;
        const float g = dX[r / 2][c / 2][2 * (r % 2) + c % 2];
        // Of a hidden pair nothing comes through, an infinite derivative neither.
        if (g == 0.0F) continue;
        const int distance =
            at.query + 8 * r + tiles.lane / 4 - at.key - 8 * (c / 2) - 2 * (tiles.lane % 4) - c % 2;
        const auto diagonal =
            Function::diagonal(place, u, distance, static_cast<float>(distance), t);
        Function::terms(place, u, queries[r].part, keys[c].part, diagonal, queries[r].index,
                        keys[c].index, X[r / 2][c / 2][2 * (r % 2) + c % 2], t, g, sums);
      }
    }
  }

  __forceinline__ void run(const BlockRange& range) {
    tiles.read_low();
    tiles.load_queries();
    tiles.for_blocks(
        range, [](int) {},
        [&](int block, int, bool) {
          __syncthreads();  // all warps are done with the K and V before
          tiles.load_keys(block, 0);
          tiles.pairs().load_async(tiles.corner(block * kBlockN));
          copy_async_commit();
          copy_async_wait<0>();
          __syncthreads();  // K, V and the pairs have landed, for all threads
          add_block(block * kBlockN);
        });
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

}  // namespace tilewise::bwd_captures_sm80
