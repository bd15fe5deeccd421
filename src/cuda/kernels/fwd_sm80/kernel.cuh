/// fwd_sm80: O = softmax(Q K^T) V by tiles, online softmax. FlashAttention-2, Dao 2023,
/// Algorithm 1. sm_80 and newer.
///
///   S = scale * Q K^T; m = rowmax; P = 2^(S - m); l = rowsum(P); O = P V / l; LSE = m + log l
///   (docs/math.md F1-F11)
///
/// One block computes block_m rows of O; every warp owns 16 or 32 whole rows, so the softmax needs
/// no exchange between warps (with key_warps = 2 or 4 each of these sees a part of every block of
/// keys, and they merge at the end, as split keys do), and P goes from the accumulators of S into
/// the A operand of P V without leaving the registers. K and V come by cp.async in blocks of
/// block_n keys, last block first: the blocks that a mask cuts, then those it does not, then
/// (windows) the cut ones on the left. Schedule, budgets and measurements: fwd_sm80/README.md.
#pragma once

#include "cuda/kernels/fwd_sm80/merge.cuh"
#include "cuda/kernels/fwd_sm80/sequences.cuh"
#include "cuda/tile/dropout.cuh"
#include "cuda/tile/expression.cuh"
#include "cuda/tile/listed.cuh"
#include "cuda/tile/pairs.cuh"
#include "cuda/tile/shared_tile.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::fwd_sm80 {

using namespace tile;

template <Config kConfig>
struct Forward {
  static constexpr Element kElement = kConfig.form.element;
  static constexpr int kPlanes = kConfig.form.planes;
  static constexpr int kThreads = kConfig.shape.warps * 32;
  static constexpr int kBlockM = kConfig.shape.block_m, kBlockN = kConfig.shape.block_n;
  static constexpr int kKeyWarps = kConfig.shape.key_warps;
  static constexpr int kRowWarps = kConfig.shape.warps / kKeyWarps;
  static constexpr int kRows = kBlockM / kRowWarps;  ///< of a warp
  static constexpr int kKeys = kBlockN / kKeyWarps;  ///< of a block, for a warp
  static constexpr int kM = kRows / 16, kN = kKeys / 8;
  static constexpr int kD = kConfig.head_dim, kDv = kConfig.head_dim_v;
  static constexpr int kBias = kPlanes == 2 ? 7 : 0;
  static_assert(kRows % 16 == 0 && kKeys % 16 == 0);
  static_assert(!kConfig.form.scaled || kScaleRows % kBlockN == 0,
                "one scale factor for the keys of a step");
  static_assert(!kConfig.listed() || !kConfig.split);

  using TileQ = SharedTile<kBlockM, kD, kPlanes>;
  using TileK = SharedTile<kBlockN, kD, kPlanes>;
  using TileV = SharedTile<kBlockN, kDv, kPlanes, kDv * kConfig.slices>;
  using Kept = KeptPairs<kConfig.dropout, false, kM, kN>;
  using Pairs = FragmentPairs<kConfig.pairs, false, kM, kN>;
  /// Q, then `stages` of K, then `stages` of V, then the pairs of each warp. O is staged where Q
  /// was, in rows of kDv.
  static constexpr int kQBytes =
      TileQ::kBytes > kBlockM* kDv * 2 ? TileQ::kBytes : kBlockM* kDv * 2;
  /// Row statistics and O of a warp, where K and V were.
  static constexpr int kPartBytes = 512 * kM * (kDv / 8 + 1);
  static_assert((kKeyWarps - 1) * kRowWarps * kPartBytes <=
                kConfig.shape.stages * (TileK::kBytes + TileV::kBytes));

  const Args& args;
  const int thread, warp, lane;
  TileIndex tile;
  int head_k, row, seq_k;  ///< row: of the block
  Diagonals diagonals;
  Pages pages;                         ///< paged only
  const Captures* captures = nullptr;  ///< of expressions
  ScoreModification mod;
  u32 shared;
  float q_scale;
  FragmentA<kPlanes> rQ[kConfig.shape.q_in_registers ? kM : 1]
                       [kConfig.shape.q_in_registers ? kD / 16 : 1];
  Acc rO[kM][kDv / 8];
  RowStatistics<kM> rows;

  __forceinline__ int batch() const { return tile.bh / args.heads_q; }
  __forceinline__ int head() const { return tile.bh % args.heads_q; }
  __forceinline__ int list() const {
    return batch() * args.lists.list_b + head() * args.lists.list_h;
  }
  __forceinline__ int key_warp() const { return warp / kRowWarps; }
  __forceinline__ int tile_row() const { return warp % kRowWarps * kRows; }
  __forceinline__ int warp_row() const { return row + tile_row(); }
  __forceinline__ int warp_key(int block) const { return block * kBlockN + key_warp() * kKeys; }
  __forceinline__ TileQ sQ() const { return {shared}; }
  __forceinline__ TileK sK(int stage) const { return {shared + kQBytes + stage * TileK::kBytes}; }
  __forceinline__ TileV sV(int stage) const {
    return {shared + kQBytes + kConfig.shape.stages * TileK::kBytes + stage * TileV::kBytes};
  }

  __forceinline__ Forward(const Args& a, u32 shared_base, TileIndex index, int keys)
      : args(a),
        thread(static_cast<int>(threadIdx.x)),
        warp(__shfl_sync(~0U, static_cast<int>(threadIdx.x) / 32, 0)),
        lane(static_cast<int>(threadIdx.x) % 32),
        tile(index),
        row(index.block * kBlockM),
        seq_k(keys),
        diagonals(a.positions, a.seq_q, keys),
        shared(shared_base) {
    head_k = head() / args.group;
    if constexpr (kConfig.form.scaled) {
      const int block = min(warp_row() / kScaleRows, args.q_scale_blocks - 1);
      q_scale = args.q_scale[static_cast<i64>(tile.bh) * args.q_scale_blocks + block];
    } else {
      q_scale = 1.0F;
    }
    if constexpr (kConfig.modified) {
      mod = ScoreModification(args, 1.0F, batch(), head());
    }
    rows.clear();
    clear(rO);
  }

  // ---- load

  __forceinline__ void load_q() const {
    const unsigned short* gQ = static_cast<const unsigned short*>(args.q.data) +
                               batch() * args.q.stride_b + head() * args.q.stride_h +
                               row * args.q.stride_s;
    sQ().template load_async<kThreads>(gQ, args.q.stride_s, args.seq_q - row, args.cols_q, thread);
  }
  __forceinline__ const unsigned short* key_rows(const View& view) const {
    return static_cast<const unsigned short*>(view.data) + batch() * view.stride_b +
           head_k * view.stride_h;
  }
  template <class Tile>
  __forceinline__ void load_paged(const Tile& to, const View& view, int cols, int block) const {
    const unsigned short* pool =
        static_cast<const unsigned short*>(view.data) + head_k * view.stride_h;
    const int first = block * kBlockN;
    load_pages_async<kThreads>(to, pages, batch(), first, pool, view, seq_k - first, cols, thread);
  }
  __forceinline__ void load_k(int block, int stage) const {
    if constexpr (kConfig.paged()) return load_paged(sK(stage), args.k, args.cols_k, block);
    sK(stage).template load_async<kThreads>(
        key_rows(args.k) + static_cast<i64>(block) * kBlockN * args.k.stride_s, args.k.stride_s,
        seq_k - block * kBlockN, args.cols_k, thread);
  }
  __forceinline__ void load_v(int block, int stage) const {
    if constexpr (kConfig.paged()) return load_paged(sV(stage), args.v, args.cols_v, block);
    sV(stage).template load_async<kThreads>(
        key_rows(args.v) + static_cast<i64>(block) * kBlockN * args.v.stride_s, args.v.stride_s,
        seq_k - block * kBlockN, args.cols_v, thread);
  }
  __forceinline__ void keep_q() {
    if constexpr (kConfig.shape.q_in_registers) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int k = 0; k < kD / 16; ++k) sQ().load_a(rQ[m][k], tile_row() + 16 * m, k, lane);
      }
    }
  }

  // ---- bias and mask

  __forceinline__ Pairs pairs() const {
    constexpr int kOperands = kQBytes + kConfig.shape.stages * (TileK::kBytes + TileV::kBytes);
    return {args.pairs, shared + kOperands + static_cast<u32>(warp * Pairs::kRoom.bytes),
            opaque(lane)};
  }
  __forceinline__ PairCorner corner(int block) const {
    return {batch(), head(), warp_row(), warp_key(block), args.seq_q, seq_k};
  }

  // ---- scores

  /// (F1) S = Q K^T
  __forceinline__ void scores(Acc (&S)[kM][kN], int stage) const {
    clear(S);
    if constexpr (kConfig.shape.q_in_registers) {
#pragma unroll
      for (int k = 0; k < kD / 16; ++k) {
#pragma unroll
        for (int n = 0; n < kN; n += 2) {
          FragmentB<kPlanes> b;
          sK(stage).load_b(b, key_warp() * kKeys + 8 * n, k, lane);
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            mma_high<kElement>(S[m][n], rQ[m][k], b, 0);
            mma_high<kElement>(S[m][n + 1], rQ[m][k], b, 1);
          }
        }
      }
    } else {
      product_rows<kElement>(S, sQ(), tile_row(), sK(stage), key_warp() * kKeys, lane);
    }
  }

  // ---- softmax

  __forceinline__ i64 key_scale_index(int block) const {
    return (static_cast<i64>(batch()) * (args.heads_q / args.group) + head_k) *
               args.k_scale_blocks +
           warp_key(block) / kScaleRows;
  }
  template <bool kMasked>
  __forceinline__ void softmax(Acc (&S)[kM][kN], int block, const typename Pairs::Shown& shown) {
    float scale = args.scale_log2;
    if constexpr (kConfig.form.scaled) {
      const float factor = q_scale * args.k_scale[key_scale_index(block)];
      if constexpr (kConfig.modified) {
        mod.scale = args.scale * factor;
      } else {
        // Neither 0 nor infinite: a hidden score times the scale must stay -inf.
        scale = fminf(fmaxf(scale * factor, 1e-37F), 3e38F);
      }
    }
    if constexpr (kConfig.modified) {
      modify_scores(S, mod, warp_row(), warp_key(block), seq_k - args.seq_q, lane);
      scale = 1.0F;
    }
    if constexpr (kConfig.pairs.bias != BiasType::none && !kConfig.modified) {
      multiply(S, scale);
      scale = 1.0F;
    }
    if constexpr (kConfig.pairs.any()) pairs().add_to(S, corner(block));
    if constexpr (kConfig.expressions.score != 0) {
      constexpr bool kBiased = kConfig.pairs.bias != BiasType::none;
      constexpr bool kInLog2 = kConfig.modified || kBiased;
      float natural = kInLog2 ? kLn2 : args.scale;
      if constexpr (kConfig.form.scaled && !kInLog2) natural = scale * kLn2;
      apply_score_function<kConfig.expressions.score, false, kBiased>(S, natural, corner(block),
                                                                      *captures, opaque(lane));
      scale = kLog2e;
    }
    if constexpr (kConfig.pairs.any()) pairs().hide_from(S, corner(block), shown);
    // What a list shows whole no function cuts.
    if constexpr (kConfig.expressions.mask != 0 && (kMasked || !kConfig.listed())) {
      apply_mask_function<kConfig.expressions.mask, false>(S, corner(block), *captures,
                                                           opaque(lane));
    }
    if constexpr (kMasked) mask_scores(S, diagonals, seq_k, warp_row(), warp_key(block), lane);
    if constexpr (kMasked && kConfig.lists == Lists::parts)
      hide_unlisted<false>(S, args.lists, list(), warp_row(), warp_key(block));
    softmax_step<kBias>(S, rows, scale, [this](int r, float alpha) {
#pragma unroll
      for (int n = 0; n < kDv / 8; ++n) {
        rO[r / 2][n][2 * (r % 2)] *= alpha;
        rO[r / 2][n][2 * (r % 2) + 1] *= alpha;
      }
    });
  }

  // ---- accumulate

  /// (F10) O += P V
  __forceinline__ void accumulate(const FragmentA<kPlanes> (&P)[kM][kN / 2], int stage, int block) {
    float v_scale = 1.0F;
    if constexpr (kConfig.form.scaled) v_scale = args.v_scale[key_scale_index(block)];
    product_register<kElement, kConfig.form.scaled>(rO, P, sV(stage), key_warp() * (kKeys / 16), 0,
                                                    v_scale, lane);
  }

  /// One block of keys. `next` >= 0 is the block to fetch meanwhile.
  template <bool kMasked>
  __forceinline__ void step(int block, int next, int stage) {
    // This block's K has landed, for all threads; all warps are done with the stage that the next
    // copies overwrite.
    copy_async_wait<0>();
    __syncthreads();
    if constexpr (kConfig.shape.stages == 2) {
      if (next >= 0) {
        load_k(next, stage ^ 1);
        load_v(next, stage ^ 1);
      }
    } else {
      load_v(block, 0);
    }
    copy_async_commit();
    // The pairs have landed with K.
    const typename Pairs::Shown shown = pairs().shown(corner(block));
    FragmentA<kPlanes> P[kM][kN / 2];
    if (shown.some) {
      // Ahead of the scores, which take the registers.
      const Kept kept(args.dropout, tile.bh, warp_row(), warp_key(block), lane);
      Acc S[kM][kN];
      scores(S, stage);
      softmax<kMasked>(S, block, shown);
      kept.drop(S, 1.0F);  // (F10) Z P; 1 / (1 - p) comes at the end
      pack_fragments<kElement>(P, S);
    }
    if constexpr (kConfig.shape.stages == 1) {
      // V has landed, for all threads; all warps are done with K.
      copy_async_wait<0>();
      __syncthreads();
      if (next >= 0) load_k(next, 0);
    }
    if constexpr (kConfig.pairs.staged) {
      __syncwarp();  // all lanes are done with the pairs
      if (next >= 0) pairs().load_async(corner(next));
    }
    if constexpr (kConfig.shape.stages == 1 || kConfig.pairs.staged) copy_async_commit();
    if (shown.some) accumulate(P, stage, block);
  }

  /// Q and the first block of keys.
  __forceinline__ void start(int block) {
    load_q();
    load_k(block, 0);
    if constexpr (kConfig.shape.stages == 2) load_v(block, 0);
    pairs().load_async(corner(block));
    copy_async_commit();
    if constexpr (kConfig.shape.q_in_registers) {
      copy_async_wait<0>();
      __syncthreads();
      keep_q();
    }
  }
  __forceinline__ void run_listed() {
    ListCursor at(args.lists, list(), tile.block);
    bool more = at.go();
    if (!more) return;
    start(at.tile());
    int stage = 0;
#pragma unroll 1
    while (more && at.cut()) {
      const int block = at.tile();
      more = at.go();
      step<true>(block, more ? at.tile() : -1, stage);
      if constexpr (kConfig.shape.stages == 2) stage ^= 1;
    }
#pragma unroll 1
    while (more) {
      const int block = at.tile();
      more = at.go();
      step<false>(block, more ? at.tile() : -1, stage);
      if constexpr (kConfig.shape.stages == 2) stage ^= 1;
    }
  }
  __forceinline__ void run(const BlockRange& range) {
    if constexpr (kConfig.listed()) return run_listed();
    int block = range.end - 1;
    start(block);
    int stage = 0;
    const auto next = [&](int b) { return b > range.begin ? b - 1 : -1; };
#pragma unroll 1
    for (; block >= range.full_end; --block) {
      step<true>(block, next(block), stage);
      if constexpr (kConfig.shape.stages == 2) stage ^= 1;
    }
#pragma unroll 1
    for (; block >= range.full_begin; --block) {
      step<false>(block, next(block), stage);
      if constexpr (kConfig.shape.stages == 2) stage ^= 1;
    }
    if constexpr (kConfig.positional) {
#pragma unroll 1
      for (; block >= range.begin; --block) {
        step<true>(block, next(block), stage);
        if constexpr (kConfig.shape.stages == 2) stage ^= 1;
      }
    }
  }

  // ---- epilogue

  /// (F11) O / l, LSE = m + log l
  __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) {
      float l = quad_sum(rows.l[r]);
      float m = rows.m[r] == -infinity() ? 0.0F : rows.m[r] - kBias;
      float inverse = l == 0.0F ? 0.0F : 1.0F / l;
      // A sink is a key of its own in the first part: it takes probability and has no value.
      const float sink = args.sinks == nullptr || tile.split > 0
                             ? -infinity()
                             : args.sinks[head() * args.sinks_h] * kLog2e;
      if (sink > -infinity()) {
        const float top = l == 0.0F ? sink : fmaxf(m, sink);
        const float alpha = l == 0.0F ? 0.0F : exp2_approx(m - top);
        l = l * alpha + exp2_approx(sink - top);
        m = top;
        inverse = alpha / l;
      }
      if constexpr (kConfig.dropout) inverse *= args.dropout.scale;
      const int i = warp_row() + 16 * (r / 2) + lane / 4 + 8 * (r % 2);
      if (args.lse != nullptr && lane % 4 == 0 && i < args.seq_q) {
        float* to = args.lse + tile.split * args.lse_split + batch() * args.lse_b +
                    head() * args.lse_h + i * args.lse_s;
        if constexpr (kConfig.split) {
          *to = l == 0.0F ? -infinity() : m;
          to[args.order.splits * args.lse_split] = l;
        } else {
          const bool lowest = kConfig.pairs.any() && m == kLowest;
          *to = lowest ? least_bias(kConfig.pairs.bias) : (m + log2_approx(l)) * kLn2;
        }
      }
#pragma unroll
      for (int n = 0; n < kDv / 8; ++n) {
        rO[r / 2][n][2 * (r % 2)] *= inverse;
        rO[r / 2][n][2 * (r % 2) + 1] *= inverse;
      }
    }
    if constexpr (kConfig.split || kConfig.form.scaled) {
      store_floats();
    } else {
      store_elements();
    }
  }

  __forceinline__ void store_floats() const {
    float* gO = static_cast<float*>(args.o.data) + tile.split * args.o_split +
                batch() * args.o.stride_b + head() * args.o.stride_h;
    store_float_rows(rO, 1.0F, gO, args.o, args.o_vectors, warp_row(), args.seq_q, 0,
                     args.head_dim_v, lane);
  }

  /// Through shared memory, so that a lane stores 16 bytes of a row. Each warp stages its own rows
  /// of Q's place, which only it has read.
  __forceinline__ void store_elements() const {
    const SharedTile<kBlockM, kDv> sO{shared};
    if constexpr (kKeyWarps == 1 && (kQBytes > TileQ::kBytes || kD != kDv))
      __syncthreads();  // rows of O lie elsewhere than rows of Q
    __syncwarp();
    stage_rows<kElement>(rO, 1.0F, sO, tile_row(), 0, lane);
    __syncwarp();
    unsigned short* gO = static_cast<unsigned short*>(args.o.data) + batch() * args.o.stride_b +
                         head() * args.o.stride_h;
    store_rows<kRows, kDv>(sO, tile_row(), gO, args.o, args.o_vectors, warp_row(), args.seq_q,
                           args.head_dim_v, lane);
  }
};

/// One tile against the first `seq_k` keys of its entry.
template <Config kConfig>
__forceinline__ void attend(const Args& args, const TileIndex& tile, int seq_k, const Pages& pages,
                            const Captures* captures) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Block = Forward<kConfig>;
  Block block(args, shared_address(shared), tile, seq_k);
  block.pages = pages;
  block.captures = captures;
  const int row_end = min(block.row + kConfig.shape.block_m, args.seq_q);
  BlockRange range = key_blocks<kConfig.shape.block_n>(block.diagonals, block.row, row_end, seq_k);
  if constexpr (kConfig.split) {
    const int blocks = args.keys_per_split / kConfig.shape.block_n;
    range.clip(tile.split * blocks, (tile.split + 1) * blocks);
  }
  if (range.begin < range.end) block.run(range);
  let_next_start();
  if constexpr (Block::kKeyWarps > 1) {
    if (range.begin < range.end) merge_warps<kConfig>(block);
    if (block.key_warp() > 0) return;
  }
  block.finish();
}

template <Config kConfig>
__forceinline__ void run(const Args& args, const Captures* captures) {
  const TileIndex tile = tile_index(args.order, blockIdx.x);
  wait_for_previous();  // for packed operands
  attend<kConfig>(args, tile, keys_of(args, tile.bh / args.heads_q), {}, captures);
}

template <Config kConfig>
__forceinline__ void run(const RaggedArgs& ragged, const Captures* captures) {
  TileIndex tile = tile_index(ragged.args.order, blockIdx.x);
  wait_for_previous();  // for packed operands
  if constexpr (kConfig.packed) {
    Args args = ragged.args;
    int seq_k = 0;
    if (!enter_sequence<kConfig>(ragged, args, tile, seq_k)) return;
    attend<kConfig>(args, tile, seq_k, kConfig.paged() ? ragged.pages : Pages{}, captures);
  } else {
    attend<kConfig>(ragged.args, tile, keys_of(ragged.args, tile.bh / ragged.args.heads_q),
                    ragged.pages, captures);
  }
}

template <Config kConfig, class AnyArgs>
__forceinline__ void kernel(const AnyArgs& args) {
  run<kConfig>(plain_args(args), captures_of(args));
}

}  // namespace tilewise::fwd_sm80
