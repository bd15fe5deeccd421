/// mla_sm90: the consumers, two warpgroups: the scores of every second block each, O of all blocks
/// in half of the columns each.
#pragma once

#include "cuda/kernels/mla_sm90/shared.cuh"
#include "cuda/tile/hopper/ptx/warpgroup.cuh"
#include "cuda/tile/hopper/tma.cuh"
#include "cuda/tile/hopper/wgmma.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::mla_sm90 {

using namespace tile;

template <Config kConfig>
struct Consumer {
  static constexpr Element kElement = kConfig.element;
  static constexpr int kColumns = kHeadDimV / kWarpgroups;  ///< of O, of a warpgroup
  static constexpr int kBoth = 1;                           ///< barrier of both warpgroups
  using ScoreProduct = Wgmma<kElement, kBlockN>;
  using ValueProduct = Wgmma<kElement, kColumns>;
  using Fragment = u32[kBlockN / 4];  ///< P of the thread's two rows

  const Args& args;
  const Shared<kConfig> shared;
  const int warpgroup, warp, lane;
  const u64 dQ, dK, dV;  ///< descriptors of the first stage
  u32 done = 0;          ///< blocks, of all items
  u32 taken = 0;         ///< parity of the P that the other warpgroup leaves next
  u32 q_parity = 0, turn = 0;
  Ring<Sizes::kItems> slots;
  Item item;
  Diagonals diagonals;
  ItemRows<2> mine;  ///< the thread's: lane / 4 and 8 more
  Acc rS[1][kBlockN / 8];
  float rO[kColumns / 2];
  float alpha[2];
  RowStatistics<1> rows;  ///< l: of the blocks whose scores are this warpgroup's

  __forceinline__ Consumer(const Args& a, const Shared<kConfig>& s, int warpgroup_, int warp_,
                           int lane_)
      : args(a),
        shared(s),
        warpgroup(warpgroup_),
        warp(warp_),
        lane(lane_),
        dQ(panel_descriptor(s.q(), 16)),
        dK(panel_descriptor(s.k(0), 16, Sizes::kBox)),
        dV(panel_descriptor(s.k(0) + warpgroup_ * (kColumns / 64) * kBoxPanel, kBoxPanel,
                            Sizes::kBox)),
        diagonals(a.keys.positions, 0, 0) {}

  // ---- the item

  /// False: there is none.
  __forceinline__ bool enter() {
    item = next_item(shared, slots, lane);
    if (item.batch < 0) return false;
    diagonals = Diagonals(args.keys.positions, args.keys.seq_q, item.seq_k);
    const int first = item.row_tile * kRows + 16 * warp + lane / 4;
    const int last = args.keys.seq_q * args.group - 1;
#pragma unroll
    for (int r = 0; r < 2; ++r) mine.set(r, args, item, first + 8 * r, last);
    rows.clear();
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) rO[i] = 0.0F;
    // Both warpgroups wait, whoever computes scores: else one could pass an item ahead.
    mbarrier_wait(shared.q_full(), q_parity);
    q_parity ^= 1;
    return true;
  }
  __forceinline__ void release_q() const {
    if (lane == 0) mbarrier_arrive(shared.q_empty());
  }

  // ---- a block

  __forceinline__ void wait_keys(u32 n) const { shared.wait_keys(stage_of(n), parity_of(n)); }
  /// Whether keys of the n-th block have begun to come; the same for all lanes.
  __forceinline__ bool has_keys(u32 n) const {
    return !__any_sync(~0U, !mbarrier_test(shared.full(stage_of(n), 0), parity_of(n)));
  }

  /// Returns when the whole warpgroup has cleared.
  __forceinline__ void clear_keys(int key, u32 n) const {
    clear_hidden(shared, item, key, n, warp, lane);
    named_barrier_sync(2 + warpgroup, 128);
  }

  /// (F1) S = Q K^T, issued as its columns arrive
  __forceinline__ void issue_scores(u32 n) {
    constexpr int kSteps = kHeadDim / 16, kPieceSteps = kSteps / kPieces;
    auto& sums = reinterpret_cast<float(&)[kBlockN / 2]>(rS);
    const u64 k = dK + stage_of(n) * (Sizes::kStage / 16);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (i % kPieceSteps == 0) {
        mbarrier_wait(shared.full(stage_of(n), i / kPieceSteps), parity_of(n));
        wgmma_fence();
      }
      ScoreProduct::multiply_shared(sums,
                                    dQ + i / 4 * (SharedPlan::kPanel / 16) + i % 4 * kStepColumns,
                                    k + i / 4 * (kBoxPanel / 16) + i % 4 * kStepColumns, i != 0);
    }
    wgmma_commit();
  }
  __forceinline__ void finish_scores() {
    wgmma_wait<0>();
    pin(reinterpret_cast<float(&)[kBlockN / 2]>(rS));
  }

  __forceinline__ void scale_o() {
    if (!__any_sync(~0U, alpha[0] != 1.0F || alpha[1] != 1.0F)) return;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) rO[i] *= alpha[i / 2 % 2];
  }

  /// (F10) O += P V, issued
  __forceinline__ void issue_values(Fragment& P) {
    const u64 v = dV + stage_of(done) * (Sizes::kStage / 16);
    pin(P);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kBlockN / 16; ++i) {
      ValueProduct::multiply_register(rO, P[4 * i], P[4 * i + 1], P[4 * i + 2], P[4 * i + 3],
                                      v + i * kStepKeys);
    }
    wgmma_commit();
  }
  /// Waits for it, with at most kPending groups behind it; the stage is free.
  template <int kPending = 0>
  __forceinline__ void finish_values(Fragment& P) {
    wgmma_wait<kPending>();
    pin(rO);
    pin(P);
    if (lane == 0) mbarrier_arrive(shared.empty(stage_of(done)));
    ++done;
  }

  /// P and the maxima, for the warp of the same rows: it has P in the same registers.
  __forceinline__ void pass(const Fragment& P) const {
    __syncwarp();  // all lanes have taken what lay there before
    const u32 to = shared.passed(warp) + 16 * lane;
#pragma unroll
    for (int i = 0; i < kBlockN / 16; ++i) {
      store_shared_16(to + 512 * i, as_float(P[4 * i]), as_float(P[4 * i + 1]),
                      as_float(P[4 * i + 2]), as_float(P[4 * i + 3]));
    }
    if (lane % 4 == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        store_shared_4(shared.maxima(warp) + 2 * lane + 4 * r, as_bits(rows.m[r]));
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared.p_full(warpgroup, warp));
  }

  /// A block whose scores are the other warpgroup's: O += P V, issued.
  __forceinline__ void take_block(Fragment& P) {
    mbarrier_wait(shared.p_full(1 - warpgroup, warp), taken);
    taken ^= 1;
    wait_keys(done);
#pragma unroll
    for (int i = 0; i < kBlockN / 16; ++i) {
      const Bytes16 words = load_shared_16(shared.passed(warp) + 16 * lane + 512 * i);
      P[4 * i] = words.x, P[4 * i + 1] = words.y, P[4 * i + 2] = words.z, P[4 * i + 3] = words.w;
    }
    const Floats2 theirs = load_shared_8(shared.maxima(warp) + 8 * (lane / 4));
    const float m[2] = {theirs.x, theirs.y};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      alpha[r] = m[r] == rows.m[r] ? 1.0F : exp2_approx(rows.m[r] - m[r]);
      rows.m[r] = m[r];
      rows.l[r] *= alpha[r];
    }
    scale_o();
    issue_values(P);
  }

  /// A block whose scores are this warpgroup's; the block before, the other one's, is taken too,
  /// but for the item's first one. `last`: the item has no other such block.
  template <bool kAlone, bool kMasked>
  __forceinline__ void own_block(int block, bool last) {
    const int key = block * kBlockN;
    const u32 n = done + (kAlone ? 0 : 1);
    Fragment before;
    bool behind = false;
    if constexpr (!kAlone) {
      take_block(before);
      // The scores go behind it where their keys are there; else what it reads is free sooner.
      behind = has_keys(n);
      if (!behind) finish_values(before);
    }
    if (kMasked && (key < item.begin || key + kBlockN > item.end)) clear_keys(key, n);
    issue_scores(n);
    if (behind) finish_values<1>(before);
    finish_scores();
    if constexpr (kMasked) {
      hide_keys(rS, item, diagonals, mine, key, lane, [](int, int) { return ~0U; });  // (F4)
    }
    if (last) release_q();
    alpha[0] = alpha[1] = 1.0F;
    softmax_step<0>(rS, rows, args.scale_log2, [this](int r, float a) { alpha[r] = a; });
    Fragment P;
#pragma unroll
    for (int i = 0; i < kBlockN / 4; ++i) {
      const Acc& s = rS[0][i / 2];
      P[i] = pack<kElement>(s[i % 2 * 2], s[i % 2 * 2 + 1]);
    }
    pass(P);
    scale_o();
    issue_values(P);
    finish_values(P);
  }

  /// Blocks whose keys all rows see need no mask.
  __forceinline__ void blocks() {
    const auto [begin, end] = decode_sm90::uncut_keys<kRows>(args, item, diagonals);
    const int first = item.first_block(), end_block = item.end_block();
    // This warpgroup's blocks are those of its stage.
    int block = first + (stage_of(done) == static_cast<u32>(warpgroup) ? 0 : 1);
    if (block >= end_block) release_q();
#pragma unroll 1
    for (; block < end_block; block += 2) {
      const bool last = block + 2 >= end_block;
      const bool masked = block * kBlockN < begin || (block + 1) * kBlockN > end;
      if (block == first) {
        own_block<true, true>(block, last);
      } else if (masked) {
        own_block<false, true>(block, last);
      } else {
        own_block<false, false>(block, last);
      }
    }
    if (first < end_block && block == end_block) {  // the last one is the other's
      Fragment P;
      take_block(P);
      finish_values(P);
    }
  }

  // ---- epilogue

  /// l of all blocks: the sum of what both warpgroups have, in either order the same.
  __forceinline__ void add_sums() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.l[r] = quad_sum(rows.l[r]);
      if (lane % 4 == 0)
        store_shared_4(shared.sums(turn, warpgroup, warp) + 2 * lane + 4 * r, as_bits(rows.l[r]));
    }
    named_barrier_sync(kBoth, 128 * kWarpgroups);
    const Floats2 theirs = load_shared_8(shared.sums(turn, 1 - warpgroup, warp) + 8 * (lane / 4));
    rows.l[0] += theirs.x;
    rows.l[1] += theirs.y;
    turn ^= 1;
  }

  /// (F11) O / l, LSE = m + log l
  template <int r>
  __forceinline__ void finish_row() const {
    const RowResult result = finished(args, item, mine.head[r], rows.m[r], rows.l[r]);
    const bool writes = mine.exists[r] && warpgroup == 0 && lane % 4 == 0;
    if (item.parts > 1) {
      const i64 at = part_row(args, item, mine.head[r], mine.query[r]);
      if (writes) store_part_statistics(args, at, result);
      store_floats<r>(args.o_part + at * args.part_columns, result.inverse);
    } else {
      if (writes && args.lse != nullptr) store_lse(args, item, mine.head[r], mine.query[r], result);
      store_elements<r>(result.inverse);
    }
  }
  /// Lanes of a row exchange what makes 16 bytes of each.
  __forceinline__ static u32 exchange(u32 x, int other) {
    return static_cast<u32>(__shfl_xor_sync(~0U, static_cast<int>(x), other));
  }
  template <int r>
  __forceinline__ void store_floats(float* to, float factor) const {
    const bool odd = lane % 2 == 1;
    to += warpgroup * kColumns + 8 * (lane % 2) + 4 * (lane % 4 / 2);
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      u32 x[2][2];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[i / 2][i % 2] = as_bits(factor * rO[4 * (j + i / 2) + 2 * r + i % 2]);
      const u32 a = exchange(odd ? x[0][0] : x[1][0], 1);
      const u32 b = exchange(odd ? x[0][1] : x[1][1], 1);
      const Bytes16 four = {odd ? a : x[0][0], odd ? b : x[0][1], odd ? x[1][0] : a,
                            odd ? x[1][1] : b};
      if (mine.exists[r]) store_global_16(to + 8 * j, four);
    }
  }
  template <int r>
  __forceinline__ void store_elements(float factor) const {
    const bool odd = lane % 2 == 1, high = lane % 4 >= 2;
    unsigned short* to = static_cast<unsigned short*>(args.o.data) + item.batch * args.o.stride_b +
                         mine.head[r] * args.o.stride_h + mine.query[r] * args.o.stride_s +
                         warpgroup * kColumns + 8 * (lane % 4);
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 4) {
      u32 x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] =
            pack<kElement>(factor * rO[4 * (j + i) + 2 * r], factor * rO[4 * (j + i) + 2 * r + 1]);
      }
      // A transposition of four words of four lanes: by halves, then by quarters.
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const u32 got = exchange(odd ? x[i] : x[i + 1], 1);
        x[i] = odd ? got : x[i];
        x[i + 1] = odd ? x[i + 1] : got;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const u32 got = exchange(high ? x[i] : x[i + 2], 2);
        x[i] = high ? got : x[i];
        x[i + 2] = high ? x[i + 2] : got;
      }
      if (mine.exists[r]) store_global_16(to + 8 * j, {x[0], x[1], x[2], x[3]});
    }
  }

  __forceinline__ void run() {
    while (enter()) {
      blocks();
      add_sums();
      finish_row<0>();
      finish_row<1>();
    }
  }
};

}  // namespace tilewise::mla_sm90
