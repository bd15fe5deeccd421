/// bwd_dq_sm80, its refinement, gradients of bias and captured tensors: a block of queries of one
/// head, and the steps that it takes for a block of keys.
#pragma once

#include "cuda/kernels/bwd_sm80/expressions.cuh"
#include "cuda/kernels/bwd_sm80/operands.cuh"
#include "cuda/kernels/bwd_sm80/queries_args.h"
#include "cuda/kernels/bwd_sm80/sequences.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/listed.cuh"
#include "cuda/tile/pairs.cuh"
#include "cuda/tile/shared_tile.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::bwd_dq_sm80 {

using namespace tile;

template <Config kConfig>
struct QueryGradient {
  static constexpr Element kElement = kConfig.form.element;
  static constexpr int kPlanes = kConfig.form.planes;
  static constexpr int kThreads = kConfig.shape.warps * 32;
  static constexpr int kBlockM = kConfig.shape.block_m, kBlockN = kConfig.shape.block_n;
  static constexpr int kRows = kBlockM / kConfig.shape.warps;  ///< of a warp
  static constexpr int kM = kRows / 16, kN = kBlockN / 8;
  static constexpr int kD = kConfig.head_dim, kDv = kConfig.head_dim_v;
  static constexpr int kCols = kConfig.output.columns > 0 ? kConfig.output.columns : kD;  ///< of dQ
  static_assert(kRows % 16 == 0 && kBlockN % 16 == 0);
  static_assert(!kConfig.listed() || !kConfig.split);

  static constexpr int kScorePlanes = kConfig.two_plane ? 2 : kPlanes;  ///< of dS as an operand
  using TileQ = SharedTile<kBlockM, kD, kPlanes>;
  using TileO = SharedTile<kBlockM, kDv, kPlanes>;
  using TileK = SharedTile<kBlockN, kD, kPlanes>;
  using TileV = SharedTile<kBlockN, kDv, kPlanes>;
  using Kept = KeptPairs<kConfig.dropout, false, kM, kN>;
  using Pairs = FragmentPairs<kConfig.pairs, false, kM, kN>;
  /// Scores become logits less lse2 before they become probabilities.
  static constexpr bool kLogits =
      kConfig.modified || kConfig.pairs.any() || kConfig.expressions.any();
  static constexpr int kScore = kConfig.expressions.score;
  static constexpr bool kMoves = kConfig.shifts();  ///< the refinement moves lse2
  const Args& args;
  const int thread, warp, lane;
  const int batch, head, head_k, row, seq_k;  ///< row: of the block
  const int part;                             ///< of the keys, split only
  const Diagonals diagonals;
  const u32 shared;
  float q_scale = 1.0F, do_scale = 1.0F;
  const Captures* captures = nullptr;  ///< of expressions
  float lse2[2 * kM], low[2 * kM], delta[2 * kM];
  Acc dQ[kM][kCols / 8];

  __forceinline__ int warp_row() const { return row + warp * kRows; }
  __forceinline__ TileQ sQ() const { return {shared}; }
  __forceinline__ TileO sO() const { return {shared + TileQ::kBytes}; }
  __forceinline__ u32 stage_base(int stage) const {
    return shared + TileQ::kBytes + TileO::kBytes + stage * (TileK::kBytes + TileV::kBytes);
  }
  __forceinline__ TileK sK(int stage) const { return {stage_base(stage)}; }
  __forceinline__ TileV sV(int stage) const { return {stage_base(stage) + TileK::kBytes}; }

  __forceinline__ QueryGradient(const Args& a, u32 shared_base, TileIndex index, int keys)
      : args(a),
        thread(static_cast<int>(threadIdx.x)),
        warp(__shfl_sync(~0U, static_cast<int>(threadIdx.x) / 32, 0)),
        lane(static_cast<int>(threadIdx.x) % 32),
        batch(index.bh / a.heads_q),
        head(index.bh % a.heads_q),
        head_k(index.bh % a.heads_q / a.group),
        row(index.block * kBlockM),
        seq_k(keys),
        part(index.split),
        diagonals(a.positions, a.seq_q, keys),
        shared(shared_base) {
    const i64 bh = index.bh;
    if constexpr (kConfig.form.scaled) {
      const i64 at =
          bh * args.q_scale_blocks + min(warp_row() / kScaleRows, args.q_scale_blocks - 1);
      q_scale = args.q_scale[at];
      do_scale = args.do_scale[at];
    }
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) {
      const int i = warp_row() + 16 * (r / 2) + lane / 4 + 8 * (r % 2);
      lse2[r] = i < args.seq_q ? args.lse2[bh * args.rows_q + i] : infinity();
      delta[r] = i < args.seq_q ? args.delta[bh * args.rows_q + i] : 0.0F;
      low[r] = 0.0F;
    }
    clear(dQ);
  }

  __forceinline__ void load_queries() const {
    const unsigned short* gQ = bwd_sm80::operand_rows(args.q, batch, head, row);
    const unsigned short* gO = bwd_sm80::operand_rows(args.d_o, batch, head, row);
    sQ().template load_async<kThreads>(gQ, args.q.stride_s, args.seq_q - row, args.cols_q, thread);
    sO().template load_async<kThreads>(gO, args.d_o.stride_s, args.seq_q - row, args.cols_o,
                                       thread);
  }
  __forceinline__ void load_keys(int block, int stage) const {
    const int key = block * kBlockN;
    const unsigned short* gK = bwd_sm80::operand_rows(args.k, batch, head_k, key);
    const unsigned short* gV = bwd_sm80::operand_rows(args.v, batch, head_k, key);
    sK(stage).template load_async<kThreads>(gK, args.k.stride_s, seq_k - key, args.cols_k, thread);
    sV(stage).template load_async<kThreads>(gV, args.v.stride_s, seq_k - key, args.cols_v, thread);
  }

  __forceinline__ int list() const { return batch * args.lists.list_b + head * args.lists.list_h; }
  /// (F4) What position, the keys' end and a list hide.
  __forceinline__ void mask(Acc (&S)[kM][kN], int key) const {
    mask_scores(S, diagonals, seq_k, warp_row(), key, lane);
    if constexpr (kConfig.lists == Lists::parts)
      hide_unlisted<false>(S, args.lists, list(), warp_row(), key);
  }

  /// Behind the operands.
  __forceinline__ Pairs pairs() const {
    const u32 first = stage_base(kConfig.shape.stages);
    return {args.pairs, first + static_cast<u32>(warp * Pairs::kRoom.bytes), opaque(lane)};
  }
  __forceinline__ PairCorner corner(int key) const {
    return {batch, head, warp_row(), key, args.seq_q, seq_k};
  }
  __forceinline__ i64 key_scale_index(int key) const {
    return (static_cast<i64>(batch) * (args.heads_q / args.group) + head_k) * args.k_scale_blocks +
           key / kScaleRows;
  }
  __forceinline__ Kept kept_pairs(int key) const {
    return {args.dropout, batch * args.heads_q + head, warp_row(), key, lane};
  }

  /// (B1) P from S, (B5) dS in the place of dP. S is in the log2 domain once multiplied by `scale`,
  /// dP by `factor`.
  __forceinline__ void score_gradients(Acc (&S)[kM][kN], Acc (&dP)[kM][kN], float scale,
                                       float factor, bool masked) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int r = 2 * m + e / 2;
          const float s = S[m][n][e];  // modified scores have lost lse2 already
          const float p = probability(kLogits ? s : __fmaf_rn(s, scale, -lse2[r]), low[r]);
          float x = dP[m][n][e];
          x = kConfig.form.scaled ? p * __fmaf_rn(x, factor, -delta[r]) : p * (x - delta[r]);
          dP[m][n][e] = masked && p == 0.0F ? 0.0F : x;
        }
      }
    }
  }

  __forceinline__ void step(int block, int next, int stage, bool masked) {
    // This block's K and V have landed, for all threads; all warps are done with the other stage.
    copy_async_wait<0>();
    __syncthreads();
    if constexpr (kConfig.shape.stages == 2) {
      if (next >= 0) load_keys(next, stage ^ 1);
      copy_async_commit();
    }
    const int key = block * kBlockN;
    const KeyScales scales = key_scales(key);
    // The pairs have landed with K and V.
    const typename Pairs::Shown shown = pairs().shown(corner(key));
    if (shown.some) {
      add_block(key, next, stage, scales, shown, masked);
    } else {
      load_pairs(next);
    }
    if constexpr (kConfig.shape.stages == 1) {
      __syncthreads();  // all warps are done with K and V before the next ones land there
      if (next >= 0) load_keys(next, 0);
      copy_async_commit();
    }
  }
  /// Starts the copies for the next step.
  __forceinline__ void load_pairs(int next) const {
    if constexpr (kConfig.pairs.staged) {
      __syncwarp();  // all lanes are done with the pairs
      if (next >= 0) pairs().load_async(corner(next * kBlockN));
      if constexpr (kConfig.shape.stages == 2) copy_async_commit();
    }
  }
  struct KeyScales {
    float k = 1.0F, v = 1.0F;
  };
  __forceinline__ KeyScales key_scales(int key) const {
    KeyScales scales;
    if constexpr (kConfig.form.scaled) {
      const i64 at = key_scale_index(key);
      scales.k = args.k_scale[at];
      scales.v = args.v_scale[at];
    }
    return scales;
  }
  /// S and dP of a block of keys in a stage.
  __forceinline__ void products(Acc (&S)[kM][kN], Acc (&dP)[kM][kN], int key, int stage) const {
    const Kept kept = kept_pairs(key);
    clear(S);
    clear(dP);
    product_rows<kElement>(S, sQ(), warp * kRows, sK(stage), 0, lane);   // (F1) S = Q K^T
    product_rows<kElement>(dP, sO(), warp * kRows, sV(stage), 0, lane);  // (B4) dP = dO V^T
    kept.drop(dP, args.dropout.scale);
  }
  /// A block of keys' part of dQ.
  __forceinline__ void add_block(int key, int next, int stage, const KeyScales& scales,
                                 const typename Pairs::Shown& shown, bool masked) {
    Acc S[kM][kN], dP[kM][kN];
    products(S, dP, key, stage);
    if constexpr (kLogits) {
      Acc G[kM][kN];
      logits(S, G, scales.k * q_scale, key, shown, masked);
      load_pairs(next);
      if (masked) mask(S, key);
      constexpr bool kHides = kConfig.pairs.any() || kConfig.expressions.any();
      score_gradients(S, dP, 1.0F, scales.v * do_scale, masked || kHides);
      if constexpr (kScore != 0) {
        multiply_where_set(dP, G);
      } else if constexpr (kConfig.modified) {
        multiply_each(dP, G);
      }
    } else {
      const float scale = bwd_sm80::score_scale<kConfig>(args, scales.k * q_scale);
      if (masked) mask(S, key);
      score_gradients(S, dP, scale, scales.v * do_scale, masked);
    }
    float ds_scale = 1.0F;
    if constexpr (kConfig.form.scaled) ds_scale = normalise(dP);
    FragmentA<kScorePlanes> a[kM][kN / 2];
    pack_fragments<kElement>(a, dP);
    product_register<kElement, kConfig.form.scaled>(dQ, a, sK(stage), 0, kConfig.output.column,
                                                    ds_scale * scales.k,
                                                    lane);  // (B8) dQ += dS K
  }
  /// (F1 to F4) Raw scores times `factor` to logits in the log2 domain less lse2; G becomes d logit
  /// / dS where scores are modified.
  __forceinline__ void logits(Acc (&S)[kM][kN], Acc (&G)[kM][kN], float factor, int key,
                              const typename Pairs::Shown& shown, bool masked) const {
    const ScoreModification mod(args, factor, batch, head);
    const int shift = seq_k - args.seq_q;
    if constexpr (kScore != 0) {
      bwd_sm80::score_function<kConfig, false>(S, G, mod, pairs(), corner(key), *captures,
                                               opaque(lane));
      subtract_lse2(S);
    } else {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float& s = S[m][n][e];
            if constexpr (kConfig.modified) {
              const int i = warp_row() + 16 * m + lane / 4 + 8 * (e / 2);
              const int j = key + 8 * n + 2 * (lane % 4) + e % 2;
              s = mod.logit(s, i + shift - j, lse2[2 * m + e / 2], G[m][n][e]);
            } else {
              s = __fmaf_rn(s, mod.scale * kLog2e, -lse2[2 * m + e / 2]);
            }
          }
        }
      }
      if constexpr (kConfig.pairs.any()) pairs().add_to(S, corner(key));
    }
    hide(S, key, shown, masked);
  }
  __forceinline__ void subtract_lse2(Acc (&S)[kM][kN]) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) S[m][n][e] = less_lse2<kMoves>(S[m][n][e], lse2[2 * m + e / 2]);
      }
    }
  }
  /// (F4) What bool mask and mask function hide becomes -inf.
  __forceinline__ void hide(Acc (&S)[kM][kN], int key, const typename Pairs::Shown& shown,
                            bool masked) const {
    if constexpr (kConfig.pairs.any()) pairs().hide_from(S, corner(key), shown);
    if constexpr (kConfig.expressions.mask != 0) {
      // What a list shows whole no function cuts.
      if (!kConfig.listed() || masked)
        apply_mask_function<kConfig.expressions.mask, false>(S, corner(key), *captures,
                                                             opaque(lane));
    }
  }

  /// Blocks of keys of a range that is not empty, or those of it that are listed: start(first),
  /// then step(block, next or -1, whether a mask cuts it) for each.
  template <class Start, class Step>
  __forceinline__ void for_blocks(const BlockRange& range, Start start, Step step) const {
    if constexpr (kConfig.listed()) {
      ListCursor at(args.lists, list(), row / kBlockM);
      bool more = range.begin < range.end && at.go();
      if (more) start(at.tile());
#pragma unroll 1
      while (more) {
        const int block = at.tile();
        const bool cut = at.cut();
        more = at.go();
        step(block, more ? at.tile() : -1, cut);
      }
    } else {
      start(range.begin);
#pragma unroll 1
      for (int block = range.begin; block < range.end; ++block) {
        step(block, block + 1 < range.end ? block + 1 : -1,
             block < range.full_begin || block >= range.full_end);
      }
    }
  }

  __forceinline__ i64 row_index(int i) const {
    return (static_cast<i64>(batch) * args.heads_q + head) * args.rows_q + i;
  }
  /// Two planes: up to this |lse2| is exact enough: half a unit in the last place is below 2^-20.
  static constexpr float kCoarse = 16.0F;
  /// With so few keys, what remains of sums that cancel shows.
  static constexpr int kFewKeys = 8;
  __forceinline__ bool is_coarse() const {
    bool coarse = kPlanes == 2 && seq_k <= kFewKeys;
    const float limit = kPlanes == 2 ? kCoarse : args.coarse;
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r)
      coarse |= fabsf(lse2[r]) > limit && fabsf(lse2[r]) < infinity();
    return coarse;
  }
  /// What the refinement wrote beside lse2.
  __forceinline__ void read_low() {
    if constexpr (!kConfig.keeps_low()) return;
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) {
      const int i = warp_row() + 16 * (r / 2) + lane / 4 + 8 * (r % 2);
      low[r] = i < args.seq_q ? args.lse2_low[row_index(i)] : 0.0F;
    }
  }

  __forceinline__ void run(const BlockRange& range) {
    read_low();
    int stage = 0;
    const auto start = [&](int block) {
      load_queries();  // not where nothing is listed: dQ is staged there, and no step would wait
      load_keys(block, 0);
      pairs().load_async(corner(block * kBlockN));
      copy_async_commit();
    };
    for_blocks(range, start, [&](int block, int next, bool masked) {
      step(block, next, stage, masked);
      if constexpr (kConfig.shape.stages == 2) stage ^= 1;
    });
  }

  __forceinline__ void finish() const {
    if constexpr (kConfig.split) {
      // A sum for each part: bwd_convert adds them in their order.
      const i64 bh = static_cast<i64>(batch) * args.heads_q + head;
      const i64 at = (static_cast<i64>(part) * args.order.heads + bh) * args.rows_dq;
      store_fragments(dQ, args.dq_sum + at * kD, warp_row(), 0, kD, lane);
    } else if constexpr (kConfig.form.scaled) {
      store_float_rows(dQ, args.scale, output<float>(), args.dq, args.dq_vectors, warp_row(),
                       args.seq_q, 0, args.head_dim, lane);
    } else {
      // Through shared memory, each warp where its own rows of Q were, or all with all.
      const SharedTile<kBlockM, kCols> out{shared};
      kCols < kD ? __syncthreads() : __syncwarp();
      stage_rows<kElement>(dQ, args.scale, out, warp * kRows, 0, lane);
      __syncwarp();
      store_rows<kRows, kCols>(out, warp * kRows, output<unsigned short>(), args.dq,
                               args.dq_vectors, warp_row(), args.seq_q, args.head_dim, lane);
    }
  }
  template <class T>
  __forceinline__ T* output() const {
    return static_cast<T*>(args.dq.data) + batch * args.dq.stride_b + head * args.dq.stride_h;
  }
};

}  // namespace tilewise::bwd_dq_sm80
