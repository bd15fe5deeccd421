/// decode_sm90: the consumers: scores, softmax and O of a warp's share of the keys, then the merge
/// of the warps and the item's result.
#pragma once

#include "cuda/kernels/decode_sm90/shared.cuh"
#include "cuda/tile/hopper/ptx/warpgroup.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/tree.cuh"

namespace tilewise::decode_sm90 {

using namespace tile;

template <Config kConfig>
struct Consumer {
  static constexpr Element kElement = kConfig.element;
  static constexpr int kD = kConfig.head_dim, kDv = kConfig.head_dim_v;
  static constexpr int kPanels = kD / 64, kPanelsV = kDv / 64;
  static constexpr int kRowWarps = kConfig.row_warps, kKeyWarps = kWarps / kRowWarps;
  static constexpr int kKeys = kBlockN / kKeyWarps, kN = kKeys / 8;  ///< of a block, for a warp
  static constexpr int kBarrier = 1;                                 ///< of the consumers

  const Args& args;
  const Shared<kConfig> shared;
  const int lane, row_warp, key_warp;
  Ring<kConfig.stages> ring;
  Ring<SharedPlan::kItems> slots;
  Item item;
  Diagonals diagonals;
  ItemRows<2> mine;  ///< the thread's: lane / 4 and 8 more
  ScoreModification mod[2];
  FragmentA<1> rQ[kD / 16];
  Acc rO[kPanelsV][1][8];
  RowStatistics<1> rows;

  __forceinline__ Consumer(const Args& a, const Shared<kConfig>& s, int warp, int lane_)
      : args(a),
        shared(s),
        lane(lane_),
        row_warp(warp % kRowWarps),
        key_warp(warp / kRowWarps),
        diagonals(a.keys.positions, 0, 0) {}

  // ---- the item

  /// False: there is none.
  __forceinline__ bool enter() {
    item = next_item(shared, slots, lane);
    if (item.batch < 0) return false;
    diagonals = Diagonals(args.keys.positions, args.keys.seq_q, item.seq_k);
    const int first = item.row_tile * kConfig.tile_rows() + 16 * row_warp + lane / 4;
    const int last = args.keys.seq_q * args.group - 1;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      mine.set(r, args, item, first + 8 * r, last);
      if constexpr (kConfig.modified)
        mod[r] = ScoreModification(args, 1.0F, item.batch, mine.head[r]);
    }
    load_q();
    rows.clear();
#pragma unroll
    for (int p = 0; p < kPanelsV; ++p) clear(rO[p]);
    return true;
  }

  /// Every warp of the same rows has them.
  __forceinline__ void load_q() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned short* from = static_cast<const unsigned short*>(args.q.data) +
                                   item.batch * args.q.stride_b + mine.head[r] * args.q.stride_h +
                                   mine.query[r] * args.q.stride_s + 2 * (lane % 4);
#pragma unroll
      for (int k = 0; k < kD / 16; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = 16 * k + 8 * half;
          const bool reads = mine.exists[r] && column < args.cols_q;
          rQ[k].r[0][r + 2 * half] = reads ? *reinterpret_cast<const u32*>(from + column) : 0;
        }
      }
    }
  }

  // ---- a block

  /// (F1) S = Q K^T of the warp's keys.
  __forceinline__ void scores(Acc (&S)[1][kN]) const {
    // Few accumulators: two sums of each make chains of half the length.
    constexpr int kChains = kN == 2 ? 2 : 1;
    const auto sK = shared.k(ring.slot);
    Acc sums[kChains][kN] = {};
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
#pragma unroll
      for (int n = 0; n < kN; n += 2) {
        FragmentB<1> b;
        const int row = key_warp * kKeys + 8 * n;
        sK.panel(row, k / 4).load_b(b, row % sK.kRows, k % 4, lane);
        mma_high<kElement>(sums[k % kChains][n], rQ[k], b, 0);
        mma_high<kElement>(sums[k % kChains][n + 1], rQ[k], b, 1);
      }
    }
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        S[0][n][e] = kChains == 2 ? sums[0][n][e] + sums[kChains - 1][n][e] : sums[0][n][e];
    }
  }

  /// (F1 to F3) Logits in the log2 domain. `key`: of the warp's first score.
  __forceinline__ void modify(Acc (&S)[1][kN], int key) const {
    const int shift = item.seq_k - args.keys.seq_q;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int j = key + 8 * n + 2 * (lane % 4) + e % 2;
        float unused;
        S[0][n][e] = mod[e / 2].logit(S[0][n][e], mine.query[e / 2] + shift - j, 0.0F, unused);
      }
    }
  }

  /// (F4) By position, by the item's keys, by a tree's words.
  __forceinline__ void mask(Acc (&S)[1][kN], int key) const {
    hide_keys(S, item, diagonals, mine, key, lane, [this](int r, int column) {
      if constexpr (!kConfig.tree) return ~0U;
      return tree_bits<kKeys>(args.tree, item.batch, mine.query[r],
                              column - (item.seq_k - args.keys.seq_q));
    });
  }

  /// Elements of V's rows key, key + 1 that the item has.
  __forceinline__ u32 kept(int key) const {
    return (key >= item.begin && key < item.end ? 0xffffU : 0U) |
           (key + 1 >= item.begin && key + 1 < item.end ? 0xffff0000U : 0U);
  }
  /// (F10) O += P V. With kMasked, rows of V that the item does not have hold anything and count as
  /// zeros: 0 times a NaN would be one. CONTRACT 10
  template <bool kMasked>
  __forceinline__ void accumulate(const FragmentA<1> (&P)[1][kN / 2], int key) {
    const auto sV = shared.v(ring.slot);
#pragma unroll
    for (int k = 0; k < kN / 2; ++k) {
      const int at = key + 16 * k + 2 * (lane % 4);
      const u32 low = kMasked ? kept(at) : 0, high = kMasked ? kept(at + 8) : 0;
#pragma unroll
      for (int p = 0; p < kPanelsV; ++p) {
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
          FragmentB<1> b;
          const int row = key_warp * kKeys + 16 * k;
          sV.panel(row, p).load_b_trans(b, row % sV.kRows / 16, 8 * n, lane);
          if constexpr (kMasked) {
            b.r[0][0] &= low;
            b.r[0][1] &= high;
            b.r[0][2] &= low;
            b.r[0][3] &= high;
          }
          mma_high<kElement>(rO[p][0][n], P[0][k], b, 0);
          mma_high<kElement>(rO[p][0][n + 1], P[0][k], b, 1);
        }
      }
    }
  }

  template <bool kMasked>
  __forceinline__ void step(int block) {
    const int key = block * kBlockN + key_warp * kKeys;
    mbarrier_wait(shared.full(ring.slot), ring.parity);
    Acc S[1][kN];
    scores(S);
    if constexpr (kConfig.modified) modify(S, key);
    if constexpr (kMasked) mask(S, key);
    softmax_step<0>(S, rows, kConfig.modified ? 1.0F : args.scale_log2, [this](int r, float alpha) {
#pragma unroll
      for (int p = 0; p < kPanelsV; ++p) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          rO[p][0][n][2 * r] *= alpha;
          rO[p][0][n][2 * r + 1] *= alpha;
        }
      }
    });
    FragmentA<1> P[1][kN / 2];
    pack_fragments<kElement>(P, S);
    accumulate<kMasked>(P, key);
    __syncwarp();  // all lanes are done with the stage
    if (lane == 0) mbarrier_arrive(shared.empty(ring.slot));
    ring.advance();
  }

  /// Blocks whose keys all rows see need no mask.
  __forceinline__ void blocks() {
    auto [begin, end] = uncut_keys<kConfig.tile_rows()>(args, item, diagonals);
    if constexpr (kConfig.tree) end = min(end, item.seq_k - args.keys.seq_q);
#pragma unroll 1
    for (int block = item.first_block(); block < item.end_block(); ++block) {
      if (block * kBlockN >= begin && (block + 1) * kBlockN <= end) {
        step<false>(block);
      } else {
        step<true>(block);
      }
    }
  }

  // ---- the merge of warps that share rows

  static __forceinline__ float as_float(u32 bits) { return __int_as_float(static_cast<int>(bits)); }
  __forceinline__ void leave(u32 to) const {
    if (lane % 4 == 0) {
      const u32 at = to + 16 * (lane / 4);
      store_shared_16(at, rows.m[0], rows.m[1], rows.l[0], rows.l[1]);
    }
    to += 128 + 16 * lane;
#pragma unroll
    for (int p = 0; p < kPanelsV; ++p) {
#pragma unroll
      for (int n = 0; n < 8; ++n, to += 512) {
        const Acc& o = rO[p][0][n];
        store_shared_16(to, o[0], o[1], o[2], o[3]);
      }
    }
  }
  __forceinline__ void take(u32 from) {
    const Bytes16 row = load_shared_16(from + 16 * (lane / 4));
    const float theirs[2] = {as_float(row.x), as_float(row.y)};
    const float l[2] = {as_float(row.z), as_float(row.w)};
    float alpha[2], beta[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float top = fmaxf(rows.m[r], theirs[r]);
      // What saw nothing has no weight.
      alpha[r] = rows.m[r] == -infinity() ? 0.0F : exp2_approx(rows.m[r] - top);
      beta[r] = theirs[r] == -infinity() ? 0.0F : exp2_approx(theirs[r] - top);
      rows.l[r] = rows.l[r] * alpha[r] + l[r] * beta[r];
      rows.m[r] = top;
    }
    from += 128 + 16 * lane;
#pragma unroll
    for (int p = 0; p < kPanelsV; ++p) {
#pragma unroll
      for (int n = 0; n < 8; ++n, from += 512) {
        const Bytes16 o = load_shared_16(from);
        const float words[4] = {as_float(o.x), as_float(o.y), as_float(o.z), as_float(o.w)};
#pragma unroll
        for (int e = 0; e < 4; ++e)
          rO[p][0][n][e] = rO[p][0][n][e] * alpha[e / 2] + words[e] * beta[e / 2];
      }
    }
  }
  /// By halves, always the same ones: bitwise repeatable.
  __forceinline__ void merge() {
#pragma unroll
    for (int r = 0; r < 2; ++r) rows.l[r] = quad_sum(rows.l[r]);
#pragma unroll
    for (int half = kKeyWarps / 2; half > 0; half /= 2) {
      const u32 place = shared.merge((key_warp % half) * kRowWarps + row_warp);
      named_barrier_sync(kBarrier, 32 * kWarps);  // what lay there before has been taken
      if (key_warp >= half && key_warp < 2 * half) leave(place);
      named_barrier_sync(kBarrier, 32 * kWarps);  // it is there
      if (key_warp < half) take(place);
    }
  }

  // ---- epilogue

  /// (F11) O / l, LSE = m + log l
  __forceinline__ void finish() const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowResult result = finished(args, item, mine.head[r], rows.m[r], rows.l[r]);
      if (!mine.exists[r]) continue;
      if (item.parts > 1) {
        const i64 at = part_row(args, item, mine.head[r], mine.query[r]);
        if (lane % 4 == 0) store_part_statistics(args, at, result);
        store_floats(args.o_part + at * args.part_columns, r, result.inverse);
      } else {
        if (args.lse != nullptr && lane % 4 == 0)
          store_lse(args, item, mine.head[r], mine.query[r], result);
        store_elements(r, result.inverse);
      }
    }
  }
  __forceinline__ void store_floats(float* to, int r, float factor) const {
#pragma unroll
    for (int p = 0; p < kPanelsV; ++p) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int d = 64 * p + 8 * n + 2 * (lane % 4);
        if (d < args.part_columns)
          store_global_8(to + d, factor * rO[p][0][n][2 * r], factor * rO[p][0][n][2 * r + 1]);
      }
    }
  }
  __forceinline__ void store_elements(int r, float factor) const {
    unsigned short* to = static_cast<unsigned short*>(args.o.data) + item.batch * args.o.stride_b +
                         mine.head[r] * args.o.stride_h + mine.query[r] * args.o.stride_s;
#pragma unroll
    for (int p = 0; p < kPanelsV; ++p) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int d = 64 * p + 8 * n + 2 * (lane % 4);
        const u32 both =
            pack<kElement>(factor * rO[p][0][n][2 * r], factor * rO[p][0][n][2 * r + 1]);
        if (args.o_pairs && d < args.head_dim_v) {
          *reinterpret_cast<u32*>(to + d) = both;
          continue;
        }
        if (d < args.head_dim_v) to[d * args.o.stride_d] = static_cast<unsigned short>(both);
        if (d + 1 < args.head_dim_v)
          to[(d + 1) * args.o.stride_d] = static_cast<unsigned short>(both >> 16);
      }
    }
  }

  __forceinline__ void run() {
    while (enter()) {
      blocks();
      merge();
      if (key_warp == 0) finish();
    }
  }
};

}  // namespace tilewise::decode_sm90
