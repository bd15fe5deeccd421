/// bwd_sm80: dK and dV by tiles, and in the same pass dQ by atomic additions. FlashAttention-2, Dao
/// 2023, Algorithm 2. sm_80 and newer.
///
///   P = exp(S - LSE); dV = P^T dO; dP = dO V^T; dS = P (dP - delta); dK = scale dS^T Q;
///   dQ = scale dS K   (B1-B9)
///
/// One block owns block_n keys of one kv head and walks over the queries of all heads of its group.
/// Everything is computed transposed (S^T = K Q^T), so that a warp owns whole keys: the
/// accumulators of P^T and dS^T are, packed, the A operands of dV and dK, and only dS crosses
/// between warps, through shared memory, for dQ. With column_warps = 2 two warps share 32 keys,
/// each with half of the queries and then of the columns of dK and dV; P crosses too (README.md).
#pragma once

#include "cuda/kernels/bwd_sm80/expressions.cuh"
#include "cuda/kernels/bwd_sm80/hidden_rows.cuh"
#include "cuda/kernels/bwd_sm80/keys_result.cuh"
#include "cuda/kernels/bwd_sm80/sequences.cuh"

namespace tilewise::bwd_sm80 {
using namespace tile;

template <Config kConfig>
struct Backward : KeyShape<kConfig> {
  using Shape = KeyShape<kConfig>;
  using Shape::kElement, Shape::kPlanes, Shape::kThreads, Shape::kBlockM, Shape::kBlockN, Shape::kD,
      Shape::kDv, Shape::kColsK, Shape::kColsV, Shape::kColumnWarps, Shape::kKeys, Shape::kM,
      Shape::kN, Shape::kSub, Shape::kSubs, Shape::kRowWarps, Shape::kQm, Shape::kQCols,
      Shape::kCross, Shape::kTilesS, Shape::kWithK, Shape::kWithV, Shape::kScorePlanes,
      Shape::kScore, Shape::kLogits, Shape::kHides, Shape::kLow, Shape::kRowBytes,
      Shape::kStageBytes;
  using typename Shape::TileK, typename Shape::TileV, typename Shape::TileQ, typename Shape::TileO,
      typename Shape::TileS, typename Shape::Kept, typename Shape::Pairs;

  /// Those of a sub_step: from row `row` + `query` of a head on; row < 0: none.
  struct Queries {
    int head, row, query;
  };

  const Args& args;
  const int thread, warp, lane;
  const TileIndex tile;
  const int batch, head_k, key, seq_k;  ///< key: of the block
  const u32 shared;
  const Captures* captures = nullptr;  ///< of expressions
  float k_scale = 1.0F, v_scale = 1.0F;
  Acc rK[kM][kColsK / kColumnWarps / 8], rV[kM][kColsV / kColumnWarps / 8];  ///< dK, dV

  /// NOTE: made anew where a step is masked. Kept in registers through the loop, they spill others.
  __forceinline__ Diagonals diagonals() const {
    return Diagonals(args.positions, opaque(args.seq_q), seq_k);
  }
  __forceinline__ int key_warp() const { return warp / kColumnWarps; }
  __forceinline__ int column_warp() const { return warp % kColumnWarps; }
  __forceinline__ int warp_key() const { return key_warp() * kKeys; }
  __forceinline__ TileK sK() const { return {shared}; }
  __forceinline__ TileV sV() const { return {shared + TileK::kBytes}; }
  __forceinline__ u32 stage_base(int stage) const {
    return shared + TileK::kBytes + TileV::kBytes + stage * kStageBytes;
  }
  __forceinline__ TileQ sQ(int stage) const { return {stage_base(stage)}; }
  __forceinline__ TileO sO(int stage) const { return {stage_base(stage) + TileQ::kBytes}; }
  __forceinline__ u32 s_lse(int stage) const {
    return stage_base(stage) + TileQ::kBytes + TileO::kBytes;
  }
  __forceinline__ TileS sS() const { return {stage_base(kConfig.shape.stages)}; }
  __forceinline__ TileS sP() const { return {stage_base(kConfig.shape.stages) + TileS::kBytes}; }
  /// A warp's, behind all that.
  __forceinline__ Pairs pairs() const {
    const int at = kTilesS * TileS::kBytes + warp * Pairs::kRoom.bytes;
    return {args.pairs, stage_base(kConfig.shape.stages) + static_cast<u32>(at), opaque(lane)};
  }
  __forceinline__ PairCorner corner(const Queries& at) const {
    return {batch, at.head, at.row + at.query, key + warp_key(), args.seq_q, seq_k};
  }

  /// The list of a query head.
  __forceinline__ int list(int head) const {
    return batch * args.lists.list_b + head * args.lists.list_h;
  }
  /// (F4) What position, the keys' end and a list hide.
  __forceinline__ void mask(Acc (&S)[kM][kN], const Queries& at) const {
    const int first = key + warp_key(), row = at.row + at.query;
    mask_transposed(S, diagonals(), seq_k, first, row, lane);
    if constexpr (kConfig.lists == Lists::parts)
      hide_unlisted<true>(S, args.lists, list(at.head), row, first);
  }

  __forceinline__ Backward(const Args& a, u32 shared_base, TileIndex index, int keys)
      : args(a),
        thread(static_cast<int>(threadIdx.x)),
        warp(__shfl_sync(~0U, static_cast<int>(threadIdx.x) / 32, 0)),
        lane(static_cast<int>(threadIdx.x) % 32),
        tile(index),
        batch(index.bh / (a.heads_q / a.group)),
        head_k(index.bh % (a.heads_q / a.group)),
        key(index.block * kBlockN),
        seq_k(keys),
        shared(shared_base) {
    if constexpr (kConfig.form.scaled) {
      const i64 at = static_cast<i64>(tile.bh) * args.k_scale_blocks +
                     min((key + warp_key()) / kScaleRows, args.k_scale_blocks - 1);
      k_scale = args.k_scale[at];
      v_scale = args.v_scale[at];
    }
    clear(rK);
    clear(rV);
  }

  // ---- load

  __forceinline__ void load_keys() const {
    const unsigned short* gK = static_cast<const unsigned short*>(args.k.data) +
                               batch * args.k.stride_b + head_k * args.k.stride_h +
                               key * args.k.stride_s;
    const unsigned short* gV = static_cast<const unsigned short*>(args.v.data) +
                               batch * args.v.stride_b + head_k * args.v.stride_h +
                               key * args.v.stride_s;
    sK().template load_async<kThreads>(gK, args.k.stride_s, seq_k - key, args.cols_k, thread);
    sV().template load_async<kThreads>(gV, args.v.stride_s, seq_k - key, args.cols_v, thread);
  }
  __forceinline__ void load_queries(int head, int block, int stage) const {
    const int row = block * kBlockM;
    const unsigned short* gQ = static_cast<const unsigned short*>(args.q.data) +
                               batch * args.q.stride_b + head * args.q.stride_h +
                               row * args.q.stride_s;
    const unsigned short* gO = static_cast<const unsigned short*>(args.d_o.data) +
                               batch * args.d_o.stride_b + head * args.d_o.stride_h +
                               row * args.d_o.stride_s;
    sQ(stage).template load_async<kThreads>(gQ, args.q.stride_s, args.seq_q - row, args.cols_q,
                                            thread);
    sO(stage).template load_async<kThreads>(gO, args.d_o.stride_s, args.seq_q - row, args.cols_o,
                                            thread);
    if (thread < kBlockM / 4) {
      const i64 at =
          (static_cast<i64>(batch) * args.heads_q + head) * args.rows_q + row + thread * 4;
      copy_async_16(s_lse(stage) + thread * 16, args.lse2 + at, 16);
      copy_async_16(s_lse(stage) + kRowBytes + thread * 16, args.delta + at, 16);
      if constexpr (kLow) {
        copy_async_16(s_lse(stage) + 2 * kRowBytes + thread * 16, args.lse2_low + at, 16);
      }
    }
  }

  // ---- P and dS

  __forceinline__ void load_scales(const Queries& at, float& q_scale, float& do_scale) const {
    const i64 index = (static_cast<i64>(batch) * args.heads_q + at.head) * args.q_scale_blocks +
                      min((at.row + at.query) / kScaleRows, args.q_scale_blocks - 1);
    q_scale = args.q_scale[index];
    do_scale = args.do_scale[index];
  }

  __forceinline__ float row_value(u32 base, int query, int n, int e) const {
    return load_shared_f32(base + 4 * (query + 8 * n + 2 * (lane % 4) + e));
  }

  /// The elements of a fragment by queries: `row_of(n, e)` is made once for those of a query, and
  /// `use(row, m, n, at)` takes each.
  template <class RowOf, class Use>
  __forceinline__ static void by_query(const RowOf& row_of, const Use& use) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const auto row = row_of(n, e);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) use(row, m, n, 2 * half + e);
        }
      }
    }
  }

  /// (B1) S^T to P^T. Logits have lost lse2 already.
  __forceinline__ void probabilities(Acc (&S)[kM][kN], float scale, int stage, int query) const {
    struct Lse {
      float log2, low;
    };
    const auto lse_of = [&](int n, int e) {
      Lse lse = {0.0F, 0.0F};
      if constexpr (!kLogits) lse.log2 = row_value(s_lse(stage), query, n, e);
      if constexpr (kLow) lse.low = row_value(s_lse(stage) + 2 * kRowBytes, query, n, e);
      return lse;
    };
    by_query(lse_of, [&](const Lse& lse, int m, int n, int at) {
      float& s = S[m][n][at];
      s = probability(kLogits ? s : __fmaf_rn(s, scale, -lse.log2), lse.low);
    });
  }
  /// (B5) dP^T, times `factor`, to dS^T.
  __forceinline__ void score_gradients(Acc (&dP)[kM][kN], const Acc (&P)[kM][kN], float factor,
                                       int stage, int query, bool masked) const {
    const auto delta_of = [&](int n, int e) {
      return row_value(s_lse(stage) + kRowBytes, query, n, e);
    };
    by_query(delta_of, [&](float delta, int m, int n, int at) {
      float& x = dP[m][n][at];
      const float p = P[m][n][at];
      x = kConfig.form.scaled ? p * __fmaf_rn(x, factor, -delta) : p * (x - delta);
    });
    // Nothing comes through a hidden pair, a NaN of dO or V neither.
    if (masked) clear_where_zero(dP, P);
  }

  /// (F1 to F4) S^T times `factor` becomes logits in the log2 domain less lse2, and G d logit / dS
  /// where scores are modified.
  __forceinline__ void logits(Acc (&S)[kM][kN], Acc (&G)[kM][kN], float factor, int stage,
                              const Queries& at, const typename Pairs::Shown& shown,
                              bool masked) const {
    const ScoreModification mod(args, factor, batch, at.head);
    const int shift = seq_k - args.seq_q;
    if constexpr (kScore != 0) {
      score_function<kConfig, true>(S, G, mod, pairs(), corner(at), *captures, opaque(lane));
    }
    const auto lse2_of = [&](int n, int e) { return row_value(s_lse(stage), at.query, n, e); };
    by_query(lse2_of, [&](float lse2, int m, int n, int x) {
      float& s = S[m][n][x];
      if constexpr (kScore != 0) {
        s = less_lse2<kConfig.shifts()>(s, lse2);
      } else if constexpr (kConfig.modified) {
        const int j = key + warp_key() + 16 * m + lane / 4 + 8 * (x / 2);
        const int i = at.row + at.query + 8 * n + 2 * (lane % 4) + x % 2;
        s = mod.logit(s, i + shift - j, lse2, G[m][n][x]);
      } else {
        s = __fmaf_rn(s, mod.scale * kLog2e, -lse2);
      }
    });
    if constexpr (kConfig.pairs.any() && kScore == 0) pairs().add_to(S, corner(at));
    if constexpr (kConfig.pairs.any()) pairs().hide_from(S, corner(at), shown);
    if constexpr (kConfig.expressions.mask != 0) {
      // What a list shows whole no function cuts.
      if (!kConfig.listed() || masked)
        apply_mask_function<kConfig.expressions.mask, true>(S, corner(at), *captures, opaque(lane));
    }
  }
  /// Starts the copies for the next sub_step.
  __forceinline__ void load_pairs(const Queries& next) const {
    if constexpr (kConfig.pairs.staged) {
      __syncwarp();  // all lanes are done with the pairs
      if (next.row >= 0) pairs().load_async(corner(next));
      copy_async_commit();
    }
  }

  /// kSub queries of the step's block: P^T and dS^T, and what follows from them without other
  /// warps. `next` is the sub_step after it.
  __forceinline__ void sub_step(const Queries& at, const Queries& next, int stage, bool masked) {
    const auto [head, row, query] = at;
    float q_scale = 1.0F, do_scale = 1.0F;
    if constexpr (kConfig.form.scaled) load_scales(at, q_scale, do_scale);
    const typename Pairs::Shown shown = pairs().shown(corner(at));
    if (!shown.some) {
      load_pairs(next);
      if constexpr (kCross || kConfig.output.with_dq) {
        const Acc none[kM][kN] = {};
        stage_rows<kElement>(none, 1.0F, sS(), warp_key(), query, lane);
        if constexpr (kCross) stage_rows<kElement>(none, 1.0F, sP(), warp_key(), query, lane);
      }
      return;
    }
    const Kept kept(args.dropout, batch * args.heads_q + head, key + warp_key(), row + query, lane);
    Acc S[kM][kN], dP[kM][kN];
    clear(S);
    product_rows<kElement>(S, sK(), warp_key(), sQ(stage), query, lane);  // (F1) S^T = K Q^T
    if constexpr (kLogits) {
      Acc G[kM][kN];
      logits(S, G, k_scale * q_scale, stage, at, shown, masked);
      load_pairs(next);
      if (masked) mask(S, at);
      probabilities(S, 1.0F, stage, query);
      if constexpr (kWithK) {
        clear(dP);
        product_rows<kElement>(dP, sV(), warp_key(), sO(stage), query, lane);  // (B4)
        kept.drop(dP, args.dropout.scale);
        score_gradients(dP, S, v_scale * do_scale, stage, query, masked || kHides);
        if constexpr (kScore != 0) {
          multiply_where_set(dP, G);
        } else if constexpr (kConfig.modified) {
          multiply_each(dP, G);
        }
      }
    } else {
      float scale = args.scale_log2;
      if constexpr (kConfig.form.scaled) {
        scale = fminf(fmaxf(scale * (k_scale * q_scale), 1e-37F), 3e38F);
      }
      if (masked) mask(S, at);
      probabilities(S, scale, stage, query);
      if constexpr (kWithK) {
        clear(dP);
        product_rows<kElement>(dP, sV(), warp_key(), sO(stage), query, lane);  // (B4) dP^T = V dO^T
        kept.drop(dP, args.dropout.scale);
        score_gradients(dP, S, v_scale * do_scale, stage, query, masked);
      }
    }
    kept.drop(S, 1.0F);  // (B3) Z P; 1 / (1 - p) comes at the end
    if constexpr (kCross) {
      stage_rows<kElement>(S, 1.0F, sP(), warp_key(), query, lane);
      stage_rows<kElement>(dP, 1.0F, sS(), warp_key(), query, lane);
      return;
    }
    if constexpr (kConfig.output.with_dq)
      stage_rows<kElement>(dP, 1.0F, sS(), warp_key(), query, lane);
    if constexpr (kWithV) {
      FragmentA<kScorePlanes> a[kM][kN / 2];
      if constexpr (kConfig.form.scaled) multiply(S, kProbabilityScale);
      pack_fragments<kElement>(a, S);
      product_register<kElement, kConfig.form.scaled>(rV, a, sO(stage), query / 16,
                                                      kConfig.output.column,
                                                      do_scale * (1.0F / kProbabilityScale),
                                                      lane);  // (B3) dV += P^T dO
    }
    if constexpr (kWithK) {
      float ds_scale = 1.0F;
      if constexpr (kConfig.form.scaled) ds_scale = normalise(dP);
      FragmentA<kScorePlanes> a[kM][kN / 2];
      pack_fragments<kElement>(a, dP);
      product_register<kElement, kConfig.form.scaled>(rK, a, sQ(stage), query / 16,
                                                      kConfig.output.column, ds_scale * q_scale,
                                                      lane);  // (B9) dK += dS^T Q
    }
  }

  /// dV and dK of this warp's keys and columns, P^T and dS^T from shared memory.
  __forceinline__ void crossed_products(int stage) {
#pragma unroll
    for (int k = 0; k < kBlockM / 16; ++k) {
      FragmentA<kScorePlanes> a[kM][1];
#pragma unroll
      for (int m = 0; m < kM; ++m) sP().load_a(a[m][0], warp_key() + 16 * m, k, lane);
      product_register<kElement, false>(rV, a, sO(stage), k, column_warp() * (kDv / kColumnWarps),
                                        1.0F, lane);  // (B3) dV
      FragmentA<kScorePlanes> b[kM][1];
#pragma unroll
      for (int m = 0; m < kM; ++m) sS().load_a(b[m][0], warp_key() + 16 * m, k, lane);
      product_register<kElement, false>(rK, b, sQ(stage), k, column_warp() * (kD / kColumnWarps),
                                        1.0F, lane);  // (B9) dK
      limit_overlap<2 * kD>();
    }
  }

  /// (B8) dQ += dS K for the step's queries: this warp's rows and columns.
  __forceinline__ void query_gradient(int head, int row) const {
    const int first = warp % kRowWarps * (kBlockM / kRowWarps);
    const int col = warp / kRowWarps * kQCols;
    Acc dQ[kQm][kQCols / 8];
    clear(dQ);
#pragma unroll
    for (int k = 0; k < kBlockN / 16; ++k) {
      FragmentA<kScorePlanes> a[kQm][1];
#pragma unroll
      for (int m = 0; m < kQm; ++m) sS().load_a_trans(a[m][0], k, first + 16 * m, lane);
      product_register<kElement, false>(dQ, a, sK(), k, col, 1.0F, lane);
    }
    float* sums = args.dq_sum + (static_cast<i64>(batch) * args.heads_q + head) * args.rows_q * kD;
    add_fragments(dQ, sums, row + first, col, kD, lane);
  }

  // ---- main loop

  __forceinline__ void step(int head, int block, int next_head, int next_block, int stage,
                            bool masked) {
    // Q and dO have landed, for all threads; all warps are done with dS, P and the other stage.
    copy_async_wait<0>();
    __syncthreads();
    if constexpr (kConfig.shape.stages == 2) {
      if (next_block >= 0) load_queries(next_head, next_block, stage ^ 1);
      copy_async_commit();
    }
    const int row = block * kBlockM, first = column_warp() * (kSubs * kSub);
    if (masked || kHides) hide_rows<kConfig>(sO(stage), s_lse(stage), args.seq_q - row);
#pragma unroll
    for (int sub = 0; sub < kSubs; ++sub) {
      // The pairs of the first have landed with Q and dO.
      if (kConfig.pairs.staged && sub > 0) copy_async_wait<0>(), __syncwarp();
      const Queries at = {head, row, first + sub * kSub}, after = {head, row, at.query + kSub};
      const Queries next = {next_head, next_block * kBlockM, first};
      sub_step(at, sub + 1 < kSubs ? after : next, stage, masked);
    }
    if constexpr (kConfig.output.with_dq || kCross) {
      __syncthreads();  // dS (and P) of all warps are written before any warp reads them
      if constexpr (kCross) crossed_products(stage);
      if constexpr (kConfig.output.with_dq) query_gradient(head, row);
    }
    if constexpr (kConfig.shape.stages == 1) {
      __syncthreads();  // all warps are done with Q and dO before the next ones land there
      if (next_block >= 0) load_queries(next_head, next_block, 0);
      copy_async_commit();
    }
  }

  /// The keys and the first block of queries.
  __forceinline__ void start(int head, int block) const {
    load_keys();
    load_queries(head, block, 0);
    pairs().load_async(corner({head, block * kBlockM, column_warp() * (kSubs * kSub)}));
    copy_async_commit();
  }
  /// The tiles of queries of all heads of the group that list the keys.
  __forceinline__ void run_listed() {
    int head = head_k * args.group, left = args.group;
    ListCursor at(args.lists, list(head), tile.block);
    const auto go = [&] {
      while (!at.go()) {
        if (--left == 0) return false;
        at = ListCursor(args.lists, list(++head), tile.block);
      }
      return true;
    };
    bool more = go();
    if (!more) return;
    start(head, at.tile());
    int stage = 0;
#pragma unroll 1
    while (more) {
      const int of_head = head, block = at.tile();
      const bool cut = at.cut();
      more = go();
      step(of_head, block, head, more ? at.tile() : -1, stage, cut);
      if constexpr (kConfig.shape.stages == 2) stage ^= 1;
    }
  }
  __forceinline__ void run_range(const BlockRange& range) {
    const int head0 = head_k * args.group;
    start(head0, range.begin);
    int stage = 0;
#pragma unroll 1
    for (int g = 0; g < args.group; ++g) {
#pragma unroll 1
      for (int block = range.begin; block < range.end; ++block) {
        const bool wraps = block + 1 == range.end;
        const int next_block = !wraps ? block + 1 : g + 1 < args.group ? range.begin : -1;
        step(head0 + g, block, head0 + g + (wraps ? 1 : 0), next_block, stage,
             block < range.full_begin || block >= range.full_end);
        if constexpr (kConfig.shape.stages == 2) stage ^= 1;
      }
    }
  }
  __forceinline__ void run(const BlockRange& range) {
    if constexpr (kConfig.listed()) {
      run_listed();
    } else {
      run_range(range);
    }
    if constexpr (kConfig.dropout) multiply(rV, args.dropout.scale);
  }

  /// The rows of a gradient of this head.
  template <class T>
  __forceinline__ T* output(const View4& view) const {
    return static_cast<T*>(view.data) + batch * view.stride_b + head_k * view.stride_h;
  }
};

template <Config kConfig, class AnyArgs>
__forceinline__ void kernel(const AnyArgs& any) {
  extern __shared__ __align__(1024) unsigned char shared[];
  OwnArgs<kConfig.packed> own(plain_args(any));
  const Args& args = own.args;
  TileIndex tile = tile_index(args.order, blockIdx.x);
  wait_for_previous();  // for packed operands, lse2 and delta
  if constexpr (kConfig.packed) {
    if (!enter_keys<kConfig>(plain_args(any), own.args, tile)) return;
  }
  const int seq_k = keys_of(args, tile.bh / (args.heads_q / args.group));
  Backward<kConfig> block(args, shared_address(shared), tile, seq_k);
  block.captures = captures_of(any);
  const int key_end = min(block.key + kConfig.shape.block_n, seq_k);
  BlockRange range;
  if (key_end > block.key) {
    range = query_blocks<kConfig.shape.block_m>(block.diagonals(), block.key, key_end, args.seq_q);
    // Keys beyond the end must be masked in every step.
    if (key_end - block.key < kConfig.shape.block_n) range.full_end = range.full_begin;
  }
  if constexpr (kConfig.split) {
    const int blocks = args.queries_per_split / kConfig.shape.block_m;
    range.clip(tile.split * blocks, (tile.split + 1) * blocks);
    // What nobody sees adds nothing; a sum of its own must become zero.
    if (kConfig.output.with_dq && range.begin >= range.end) return;
  }
  if (range.begin < range.end) block.run(range);
  let_next_start();
  store_gradients<kConfig>(block);
}

}  // namespace tilewise::bwd_sm80
