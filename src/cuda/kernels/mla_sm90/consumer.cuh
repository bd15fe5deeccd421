/// mla_sm90: the consumers, two warpgroups: the scores of one block of each pair, O of all blocks
/// in half of the columns.
#pragma once

#include "cuda/kernels/mla_sm90/shared.cuh"
#include "cuda/tile/hopper/tma.cuh"
#include "cuda/tile/hopper/warpgroup.cuh"
#include "cuda/tile/hopper/wgmma.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::mla_sm90 {

using namespace tile;

template <Config kConfig>
struct Consumer {
  static constexpr Element kElement = kConfig.element;
  static constexpr int kColumns = kHeadDimV / kWarpgroups;  ///< of O, of a warpgroup
  /// Eight keys of a block lie a box apart; sixteen are a step of O's product.
  static constexpr u32 kStepKeys = 2 * SharedPlan::kBox / 16;
  static constexpr int kBoth = 1;  ///< barrier of both warpgroups
  using ScoreProduct = Wgmma<kElement, kBlockN>;
  using ValueProduct = Wgmma<kElement, kColumns>;
  using Fragment = u32[kBlockN / 4];  ///< P of the thread's two rows

  const Args& args;
  const Shared<kConfig> shared;
  const int warpgroup, warp, lane;
  const u64 dQ, dK, dV;  ///< descriptors of the first stage
  u32 done = 0;          ///< blocks, of all items
  u32 taken = 0;         ///< parity of the P that the other warpgroup leaves next
  u32 q_parity = 0;      ///< of the next item's Q
  Ring<SharedPlan::kItems> slots;
  Item item;
  int seen_begin, seen_end;  ///< keys that all rows see
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
        dK(panel_descriptor(s.k(0), 16, SharedPlan::kBox)),
        dV(panel_descriptor(s.k(0) + warpgroup_ * (kColumns / 64) * kBoxPanel, kBoxPanel,
                            SharedPlan::kBox)) {}
  static constexpr u32 kBoxPanel = kBoxRows * kPanelRowBytes;

  // ---- the item

  /// False: there is none.
  __forceinline__ bool enter() {
    item = next_item(shared, slots, lane);
    if (item.batch < 0) return false;
    rows.clear();
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) rO[i] = 0.0F;
    // Both warpgroups wait, whoever computes scores: else one could pass an item ahead.
    mbarrier_wait(shared.q_full(), q_parity);
    q_parity ^= 1;
    return true;
  }
  /// The thread's rows are lane / 4 and 8 more of the warp's. Worked out where they are asked for:
  /// registers are short.
  struct Row {
    bool exists;
    int query, head;
  };
  __forceinline__ Row row_of(int r) const {
    const int row = item.row_tile * kRows + 16 * warp + lane / 4 + 8 * r;
    const int last = args.keys.seq_q * args.group - 1;
    const int query = min(row, last) / args.group;
    return {row <= last, query, item.head * args.group + min(row, last) - query * args.group};
  }
  __forceinline__ Diagonals diagonals() const {
    return Diagonals(args.keys.positions, args.keys.seq_q, item.seq_k);
  }
  __forceinline__ void release_q() const {
    if (lane == 0) mbarrier_arrive(shared.q_empty());
  }

  // ---- a block

  /// Stage and phase of the n-th block of all items.
  static __forceinline__ u32 stage(u32 n) { return n % kStages; }
  static __forceinline__ u32 parity(u32 n) { return n / kStages % 2; }
  __forceinline__ void wait_keys(u32 n) const {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
      mbarrier_wait(shared.full(stage(n), piece), parity(n));
  }
  /// The pieces that this warpgroup's half of V is in. The other warpgroup may have freed the
  /// third.
  __forceinline__ void wait_values(u32 n) const {
#pragma unroll
    for (int piece = 0; piece < 2; ++piece)
      mbarrier_wait(shared.full(stage(n), warpgroup + piece), parity(n));
  }
  /// Whether they have begun to come; the same for all lanes.
  __forceinline__ bool has_keys(u32 n) const {
    return !__any_sync(~0U, !mbarrier_test(shared.full(stage(n), 0), parity(n)));
  }

  /// Keys of the block that the item has not hold anything: zeros in their place, for 0 times a NaN
  /// would be one. CONTRACT 10
  __forceinline__ void clear_hidden(int key, u32 n) const {
    wait_keys(n);
    constexpr int kChunks = kHeadDimV / 8;
#pragma unroll 1
    for (int i = 32 * warp + lane; i < kBlockN * kChunks; i += 128) {
      const int row = i / kChunks, chunk = i % kChunks;
      if (key + row >= item.begin && key + row < item.end) continue;
      store_shared_16(shared.k(stage(n)) + row / kBoxRows * SharedPlan::kBox +
                          chunk / 8 * kBoxPanel + row % kBoxRows * kPanelRowBytes + chunk % 8 * 16,
                      0.0F, 0.0F, 0.0F, 0.0F);
    }
    fence_async_shared();
    named_barrier_sync(2 + warpgroup, 128);
  }

  /// (F1) S = Q K^T over some pieces of the columns, issued as they arrive
  template <int kFirst, int kEnd>
  __forceinline__ void issue_scores(u32 n) {
    constexpr int kSteps = kHeadDim / 16, kPieceSteps = kSteps / kPieces;
    auto& sums = reinterpret_cast<float(&)[kBlockN / 2]>(rS);
    const u64 k = dK + stage(n) * (SharedPlan::kStage / 16);
#pragma unroll
    for (int i = kFirst * kPieceSteps; i < kEnd * kPieceSteps; ++i) {
      if (i % kPieceSteps == 0) {
        mbarrier_wait(shared.full(stage(n), i / kPieceSteps), parity(n));
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

  /// (F4) Hidden scores become -inf: replaced, so that nothing of a hidden key leaks. CONTRACT 4,
  /// 5, 10
  __forceinline__ void mask(int key) {
    const Diagonals visible = diagonals();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int column = key + 2 * (lane % 4), query = row_of(r).query;
      const int begin = max(query + visible.low, item.begin) - column;
      const int end = min(query + visible.high, item.end) - column;
#pragma unroll
      for (int n = 0; n < kBlockN / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int j = 8 * n + e;
          if (j < begin || j >= end) rS[0][n][2 * r + e] = -infinity();
        }
      }
    }
  }

  __forceinline__ void scale_o() {
    if (!__any_sync(~0U, alpha[0] != 1.0F || alpha[1] != 1.0F)) return;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) rO[i] *= alpha[i / 2 % 2];
  }

  /// (F10) O += P V, issued. No other product is in flight: registers of products that are get no
  /// new values, else the compiler waits after each.
  __forceinline__ void issue_values(Fragment& P) {
    scale_o();
    const u64 v = dV + stage(done) * (SharedPlan::kStage / 16);
    pin(P);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kBlockN / 16; ++i) {
      ValueProduct::multiply_register(rO, P[4 * i], P[4 * i + 1], P[4 * i + 2], P[4 * i + 3],
                                      v + i * kStepKeys);
    }
    wgmma_commit();
  }
  /// Waits for it, with at most kPending groups behind it; this half of the stage is free.
  template <int kPending = 0>
  __forceinline__ void finish_values(Fragment& P) {
    wgmma_wait<kPending>();
    pin(rO);
    pin(P);
    if (lane == 0) {
      mbarrier_arrive(shared.empty(stage(done), warpgroup));
      mbarrier_arrive(shared.empty(stage(done), warpgroup + 1));
    }
    ++done;
  }

  static __forceinline__ float as_float(u32 bits) { return __int_as_float(static_cast<int>(bits)); }
  static __forceinline__ u32 as_bits(float x) { return static_cast<u32>(__float_as_int(x)); }

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

  /// P of a block whose scores are the other warpgroup's.
  __forceinline__ void take(Fragment& P) {
    mbarrier_wait(shared.p_full(1 - warpgroup, warp), taken);
    taken ^= 1;
    wait_values(done);
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
  }

  __forceinline__ bool is_cut(int key) const {
    return key < item.begin || key + kBlockN > item.end;
  }
  /// From the scores of an own block to P, which the other warpgroup gets too.
  __forceinline__ void make_probabilities(Fragment& P, int block, bool last) {
    const int key = block * kBlockN;
    if (key < seen_begin || key + kBlockN > seen_end) mask(key);
    if (last) release_q();
    alpha[0] = alpha[1] = 1.0F;
    softmax_step<0>(rS, rows, args.scale_log2, [this](int r, float a) { alpha[r] = a; });
#pragma unroll
    for (int i = 0; i < kBlockN / 4; ++i) {
      const Acc& s = rS[0][i / 2];
      P[i] = pack<kElement>(s[i % 2 * 2], s[i % 2 * 2 + 1]);
    }
    pass(P);
  }

  /// P of an own block that nothing is in flight beside.
  __forceinline__ void begin_own(Fragment& P, int block, bool last) {
    if (is_cut(block * kBlockN)) clear_hidden(block * kBlockN, done);
    issue_scores<0, kPieces>(done);
    finish_scores();
    make_probabilities(P, block, last);
  }
  /// P of an own block; O += P V of the block before has been issued.
  __forceinline__ void begin_own_behind(Fragment& P, Fragment& before, int block, bool last) {
    const u32 n = done + 1;
    const bool cut = is_cut(block * kBlockN);
    // Scores go behind it where their keys are there; else what it reads is free sooner.
    const bool behind = !cut && has_keys(n);
    if (!behind) finish_values(before);
    if (cut) clear_hidden(block * kBlockN, n);
    issue_scores<0, 1>(n);
    if (behind) finish_values<1>(before);
    issue_scores<1, kPieces>(n);
    finish_scores();
    make_probabilities(P, block, last);
  }

  /// The item's pairs of blocks, the first of each this warpgroup's. Scores of the next pair go
  /// behind O += P V of the second.
  __forceinline__ void lead(int block, int end_block) {
    Fragment first;
    begin_own(first, block, block + 2 >= end_block);
#pragma unroll 1
    while (true) {
      issue_values(first);
      finish_values(first);
      if (block + 1 >= end_block) return;
      Fragment second;
      take(second);
      issue_values(second);
      block += 2;
      if (block >= end_block) {
        finish_values(second);
        return;
      }
      begin_own_behind(first, second, block, block + 2 >= end_block);
    }
  }
  /// The same, the second of each pair this warpgroup's: its softmax runs beside O += P V of the
  /// first. The last pair may have no second one.
  __forceinline__ void follow(int block, int end_block) {
    Fragment first;
#pragma unroll 1
    for (; block + 1 < end_block; block += 2) {
      if (is_cut((block + 1) * kBlockN)) clear_hidden((block + 1) * kBlockN, done + 1);
      issue_scores<0, kPieces>(done + 1);
      take(first);
      finish_scores();
      issue_values(first);
      Fragment second;
      make_probabilities(second, block + 1, block + 3 >= end_block);
      finish_values(first);
      issue_values(second);
      finish_values(second);
    }
    if (block < end_block) {
      take(first);
      issue_values(first);
      finish_values(first);
    }
  }

  __forceinline__ void blocks() {
    const int last_row = min(item.row_tile * kRows + kRows, args.keys.seq_q * args.group) - 1;
    const int first_row = item.row_tile * kRows;
    const Diagonals visible = diagonals();
    seen_begin = max(item.begin, last_row / args.group + visible.low);
    seen_end = min(item.end, first_row / args.group + visible.high);
    const int first = item.first_block(), end_block = item.end_block();
    // Who leads has the stage of the first block.
    const bool leads = stage(done) == static_cast<u32>(warpgroup);
    if (first + (leads ? 0 : 1) >= end_block) release_q();  // it has no block
    if (!leads) {
      follow(first, end_block);
    } else if (first < end_block) {
      lead(first, end_block);
    }
  }

  // ---- epilogue

  /// l of all blocks: the sum of what both warpgroups have, in either order the same.
  __forceinline__ void add_sums() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.l[r] = quad_sum(rows.l[r]);
      if (lane % 4 == 0)
        store_shared_4(shared.sums(q_parity, warpgroup, warp) + 2 * lane + 4 * r, as_bits(rows.l[r]));
    }
    named_barrier_sync(kBoth, 128 * kWarpgroups);
    const Floats2 theirs = load_shared_8(shared.sums(q_parity, 1 - warpgroup, warp) + 8 * (lane / 4));
    rows.l[0] += theirs.x;
    rows.l[1] += theirs.y;
  }

  /// (F11) O / l, LSE = m + log l
  template <int r>
  __forceinline__ void finish_row() const {
    const Row row = row_of(r);
    float l = rows.l[r];
    float m = rows.m[r] == -infinity() ? 0.0F : rows.m[r];
    float inverse = l == 0.0F ? 0.0F : 1.0F / l;
    // A sink is a key of its own in the first part: it takes probability and has no value.
    const float sink = args.sinks == nullptr || item.part > 0
                           ? -infinity()
                           : args.sinks[row.head * args.sinks_h] * kLog2e;
    if (sink > -infinity()) {
      const float top = l == 0.0F ? sink : fmaxf(m, sink);
      const float factor = l == 0.0F ? 0.0F : exp2_approx(m - top);
      l = l * factor + exp2_approx(sink - top);
      m = top;
      inverse = factor / l;
    }
    const bool writes = row.exists && warpgroup == 0 && lane % 4 == 0;
    if (item.parts > 1) {
      const i64 at = (static_cast<i64>(item.batch) * args.heads_q + row.head) * args.keys.seq_q +
                     row.query + item.part * args.part_rows;
      if (writes) {
        args.m_part[at] = l == 0.0F ? -infinity() : m;
        args.m_part[at + args.most_parts * args.part_rows] = l;
      }
      store_floats<r>(args.o_part + at * args.part_columns, inverse, row.exists);
    } else {
      if (writes && args.lse != nullptr) {
        args.lse[item.batch * args.lse_b + row.head * args.lse_h + row.query * args.lse_s] =
            (m + log2_approx(l)) * kLn2;
      }
      store_elements<r>(row, inverse);
    }
  }
  /// Lanes of a row exchange what makes 16 bytes of each.
  __forceinline__ static u32 exchange(u32 x, int other) {
    return static_cast<u32>(__shfl_xor_sync(~0U, static_cast<int>(x), other));
  }
  template <int r>
  __forceinline__ void store_floats(float* to, float factor, bool exists) const {
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
      if (exists) store_global_16(to + 8 * j, four);
    }
  }
  template <int r>
  __forceinline__ void store_elements(const Row& row, float factor) const {
    const bool odd = lane % 2 == 1, high = lane % 4 >= 2;
    unsigned short* to = static_cast<unsigned short*>(args.o.data) + item.batch * args.o.stride_b +
                         row.head * args.o.stride_h + row.query * args.o.stride_s +
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
      if (row.exists) store_global_16(to + 8 * j, {x[0], x[1], x[2], x[3]});
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
