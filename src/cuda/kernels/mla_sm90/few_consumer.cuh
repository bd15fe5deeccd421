/// mla_sm90: the consumers where a key head has at most 16 rows. Products have 64 rows: here they
/// are keys (scores) and columns of V (O), and the rows of the problem are their 16 columns. The
/// two warpgroups take whole blocks in turn, each with an m, l and O of its own, merged at the end
/// of an item.
#pragma once

#include "cuda/kernels/mla_sm90/shared.cuh"
#include "cuda/tile/hopper/ptx/warpgroup.cuh"
#include "cuda/tile/hopper/tma.cuh"
#include "cuda/tile/hopper/wgmma.cuh"
#include "cuda/tile/softmax.cuh"

namespace tilewise::mla_sm90 {

using namespace tile;

template <Config kConfig>
struct FewConsumer {
  static constexpr Element kElement = kConfig.element;
  static constexpr FewPlan kPlan{};
  static constexpr int kFewRows = FewPlan::kFewRows, kParts = kHeadDimV / 64;
  /// Named barriers: of both warpgroups, O of the second one is there; it has been read; of one.
  static constexpr int kThere = 1, kRead = 2, kOwn = 3;
  using Product = Wgmma<kElement, kFewRows>;

  const Args& args;
  const Shared<kConfig> shared;
  const int warpgroup, warp, lane;
  const u64 dQ, dK, dV, dP;  ///< descriptors, of the first stage
  u32 done = 0;              ///< blocks, of all items and both warpgroups
  u32 q_parity = 0;
  bool merged_before = false;
  Ring<Sizes::kItems> slots;
  Item item;
  Diagonals diagonals;
  ItemRows<4> mine;  ///< the thread's, columns of products: 8 n + 2 (lane % 4) + e, by 2 n + e
  float rS[8], rO[kParts][8];
  float m[4], l[4];  ///< of the warpgroup's blocks; l: of the thread's keys

  __forceinline__ FewConsumer(const Args& a, const Shared<kConfig>& s, int warpgroup_, int warp_,
                              int lane_)
      : args(a),
        shared(s),
        warpgroup(warpgroup_),
        warp(warp_),
        lane(lane_),
        dQ(panel_descriptor(s.q(), 16)),
        dK(panel_descriptor(s.k(0), 16, Sizes::kBox)),
        dV(panel_descriptor(s.k(0), kBoxPanel, Sizes::kBox)),
        dP(panel_descriptor(probabilities(s, warpgroup_), 1024)),
        diagonals(a.keys.positions, 0, 0) {}
  static __forceinline__ u32 probabilities(const Shared<kConfig>& s, int warpgroup) {
    return s.base + kPlan.passed + warpgroup * FewPlan::kPassed;
  }
  __forceinline__ u32 merged(int row, int column) const {
    return shared.base + kPlan.merged + row * FewPlan::kMergedRow + 4 * column;
  }
  /// The 16 rows' maxima: four floats for each lane of a quad.
  __forceinline__ u32 maxima(int of_warp) const {
    return shared.base + kPlan.maxima + (4 * warpgroup + of_warp) * Sizes::kMaxima;
  }
  __forceinline__ u32 sums(int of_warpgroup, int of_warp) const {
    return shared.base + kPlan.sums + (4 * of_warpgroup + of_warp) * Sizes::kSums;
  }

  static __forceinline__ void load_four(float (&x)[4], u32 from) {
    const Bytes16 words = load_shared_16(from);
    x[0] = as_float(words.x), x[1] = as_float(words.y);
    x[2] = as_float(words.z), x[3] = as_float(words.w);
  }
  /// Which of the thread's four columns register i of a product is.
  static constexpr int column_of(int i) { return 2 * (i / 4) + i % 2; }

  // ---- the item

  /// False: there is none.
  __forceinline__ bool enter() {
    item = next_item(shared, slots, lane);
    if (item.batch < 0) return false;
    diagonals = Diagonals(args.keys.positions, args.keys.seq_q, item.seq_k);
    const int last = args.keys.seq_q * args.group - 1;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      mine.set(c, args, item, 8 * (c / 2) + 2 * (lane % 4) + c % 2, last);
      m[c] = -infinity(), l[c] = 0.0F;
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < 8; ++i) rO[part][i] = 0.0F;
    }
    mbarrier_wait(shared.q_full(), q_parity);
    q_parity ^= 1;
    return true;
  }
  __forceinline__ void release_q() const {
    if (lane == 0) mbarrier_arrive(shared.q_empty());
  }

  // ---- a block

  __forceinline__ void sync_own() const { named_barrier_sync(kOwn + warpgroup, 128); }

  /// (F1) S^T = K Q^T, issued as its columns arrive
  __forceinline__ void scores(u32 n) {
    constexpr int kSteps = kHeadDim / 16, kPieceSteps = kSteps / kPieces;
    const u64 k = dK + stage_of(n) * (Sizes::kStage / 16);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (i % kPieceSteps == 0) {
        mbarrier_wait(shared.full(stage_of(n), i / kPieceSteps), parity_of(n));
        wgmma_fence();
      }
      Product::multiply_shared(rS, k + i / 4 * (kBoxPanel / 16) + i % 4 * kStepColumns,
                               dQ + i / 4 * (FewPlan::kPanel / 16) + i % 4 * kStepColumns, i != 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(rS);
  }

  /// (F4) Hidden scores become -inf: replaced, so that nothing of a hidden key leaks. CONTRACT 4,
  /// 5, 10
  __forceinline__ void mask(int first_key) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int c = column_of(i), key = first_key + 16 * warp + lane / 4 + 8 * (i / 2 % 2);
      if (key < max(mine.query[c] + diagonals.low, item.begin) ||
          key >= min(mine.query[c] + diagonals.high, item.end))
        rS[i] = -infinity();
    }
  }

  /// (F7) The maxima of the block, times the scale, of all four warps.
  __forceinline__ void block_maxima(float (&grown)[4]) const {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int i = 4 * (c / 2) + c % 2;
      grown[c] = fmaxf(rS[i], rS[i + 2]);
#pragma unroll
      for (int other = 4; other < 32; other *= 2)
        grown[c] = fmaxf(grown[c], __shfl_xor_sync(~0U, grown[c], other));
    }
    if (lane < 4) store_shared_16(maxima(warp) + 16 * lane, grown[0], grown[1], grown[2], grown[3]);
    sync_own();
#pragma unroll
    for (int other = 0; other < 4; ++other) {
      float theirs[4];
      load_four(theirs, maxima(other) + 16 * (lane % 4));
#pragma unroll
      for (int c = 0; c < 4; ++c) grown[c] = fmaxf(grown[c], theirs[c]);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) grown[c] *= args.scale_log2;
  }

  /// Scores become P; as softmax_step() of tile/softmax.cuh, along the other axis.
  __forceinline__ void softmax() {
    float grown[4];
    block_maxima(grown);
    bool moves = false, huge = false;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      moves |= grown[c] > m[c] + kSlack;
      huge |= fabsf(grown[c]) > kHuge && grown[c] != -infinity();
    }
    if (__any_sync(~0U, moves)) {
      float alpha[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float top = fmaxf(m[c], grown[c]);
        alpha[c] = top == -infinity() ? 1.0F : exp2_approx(m[c] - top);
        m[c] = top;
        l[c] *= alpha[c];
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < 8; ++i) rO[part][i] *= alpha[column_of(i)];
      }
    }
    float scale = args.scale_log2;
    if (__any_sync(~0U, huge)) {
#pragma unroll
      for (int i = 0; i < 8; ++i) rS[i] = __fmul_rn(rS[i], scale);
      scale = 1.0F;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int c = column_of(i);
      const float base = m[c] == -infinity() ? 0.0F : m[c];
      rS[i] = exp2_approx(__fmaf_rn(rS[i], scale, -base));  // (F8)
      l[c] += rS[i];                                        // (F9)
    }
  }

  /// P to shared memory: a row of 128 bytes for each key, of which 16 columns are used.
  __forceinline__ void leave_probabilities() const {
    const u32 to = probabilities(shared, warpgroup);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = 16 * warp + lane / 4 + 8 * half;
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        store_shared_4(to + 128 * key + ((chunk ^ key % 8) << 4) + 4 * (lane % 4),
                       pack<kElement>(rS[4 * chunk + 2 * half], rS[4 * chunk + 2 * half + 1]));
      }
    }
    fence_async_shared();  // the products read what these threads have written
    sync_own();
  }

  /// (F10) O^T += V^T P^T
  __forceinline__ void values(u32 n) {
    const u64 v = dV + stage_of(n) * (Sizes::kStage / 16);
#pragma unroll
    for (int part = 0; part < kParts; ++part) pin(rO[part]);
    wgmma_fence();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kBlockN / 16; ++i) {
        Product::multiply_transposed(rO[part], v + part * (kBoxPanel / 16) + i * kStepKeys,
                                     dP + i * kStepRows, 1);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) pin(rO[part]);
    if (lane == 0) mbarrier_arrive(shared.empty(stage_of(n)));
  }

  __forceinline__ void blocks() {
    const int last_query = (args.keys.seq_q * args.group - 1) / args.group;
    const int begin = max(item.begin, last_query + diagonals.low);
    const int end = min(item.end, diagonals.high);
    const int first = item.first_block(), end_block = item.end_block();
    // This warpgroup's blocks are those of its stage.
    int block = first + (stage_of(done) == static_cast<u32>(warpgroup) ? 0 : 1);
    u32 n = done + static_cast<u32>(block - first);
    if (block >= end_block) release_q();
#pragma unroll 1
    for (; block < end_block; block += 2, n += 2) {
      const int key = block * kBlockN;
      if (key < item.begin || key + kBlockN > item.end) {
        clear_hidden(shared, item, key, n, warp, lane);
        sync_own();
      }
      scores(n);
      if (block + 2 >= end_block) release_q();
      if (key < begin || key + kBlockN > end) mask(key);
      softmax();
      leave_probabilities();
      values(n);
    }
    done += static_cast<u32>(end_block - first);
  }

  // ---- epilogue

  /// Sums of l over all keys of the warpgroup's blocks; the second one leaves m and O too.
  __forceinline__ void leave() {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int other = 4; other < 32; other *= 2) l[c] += __shfl_xor_sync(~0U, l[c], other);
    }
    if (warpgroup == 1 && merged_before) named_barrier_sync(kRead, 128 * kWarpgroups);
    merged_before = true;
    if (lane < 4) store_shared_16(sums(warpgroup, warp) + 16 * lane, l[0], l[1], l[2], l[3]);
    if (warpgroup == 0) return;
    if (lane < 4 && warp == 0)
      store_shared_16(shared.base + kPlan.merged_maxima + 16 * lane, m[0], m[1], m[2], m[3]);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < 8; ++i) store_shared_4(place(part, i), as_bits(rO[part][i]));
    }
  }
  __forceinline__ u32 place(int part, int i) const {
    return merged(8 * (i / 4) + 2 * (lane % 4) + i % 2,
                  64 * part + 16 * warp + lane / 4 + 8 * (i / 2 % 2));
  }
  __forceinline__ void all_sums(float (&sum)[4], int of_warpgroup) const {
    load_four(sum, sums(of_warpgroup, 0) + 16 * (lane % 4));
#pragma unroll
    for (int other = 1; other < 4; ++other) {
      float more[4];
      load_four(more, sums(of_warpgroup, other) + 16 * (lane % 4));
#pragma unroll
      for (int c = 0; c < 4; ++c) sum[c] += more[c];
    }
  }

  /// The first warpgroup: both results become one, in place of the other's. (F11) O / l,
  /// LSE = m + log l
  __forceinline__ void merge() {
    float theirs[4], their_l[4], own[4], beside[4];
    load_four(theirs, shared.base + kPlan.merged_maxima + 16 * (lane % 4));
    all_sums(their_l, 1);
    all_sums(l, 0);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float top = fmaxf(m[c], theirs[c]);
      // What saw nothing has no weight.
      own[c] = m[c] == -infinity() ? 0.0F : exp2_approx(m[c] - top);
      beside[c] = theirs[c] == -infinity() ? 0.0F : exp2_approx(theirs[c] - top);
      const float sum = l[c] * own[c] + their_l[c] * beside[c];
      const RowResult result = finished(args, item, mine.head[c], top, sum);
      own[c] *= result.inverse;
      beside[c] *= result.inverse;
      if (mine.exists[c] && warp == 0 && lane < 4) write_statistics(c, result);
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int c = column_of(i);
        const float other = as_float(load_shared_4(place(part, i)));
        store_shared_4(place(part, i), as_bits(rO[part][i] * own[c] + other * beside[c]));
      }
    }
    sync_own();
  }
  __forceinline__ void write_statistics(int c, const RowResult& result) const {
    if (item.parts > 1) {
      store_part_statistics(args, part_row(args, item, mine.head[c], mine.query[c]), result);
    } else if (args.lse != nullptr) {
      store_lse(args, item, mine.head[c], mine.query[c], result);
    }
  }

  /// The rows, eight columns a thread.
  __forceinline__ void store() const {
    constexpr int kThreadsOfRow = kHeadDimV / 8;
    const int thread = 32 * warp + lane, column = thread % kThreadsOfRow * 8;
    const int rows = args.keys.seq_q * args.group;
#pragma unroll 2
    for (int row = thread / kThreadsOfRow; row < rows; row += 128 / kThreadsOfRow) {
      const int of_query = row / args.group;
      const int of_head = item.head * args.group + row - of_query * args.group;
      const Bytes16 low = load_shared_16(merged(row, column));
      const Bytes16 high = load_shared_16(merged(row, column) + 16);
      if (item.parts > 1) {
        float* to =
            args.o_part + part_row(args, item, of_head, of_query) * args.part_columns + column;
        store_global_16(to, low);
        store_global_16(to + 4, high);
      } else {
        unsigned short* to = static_cast<unsigned short*>(args.o.data) +
                             item.batch * args.o.stride_b + of_head * args.o.stride_h +
                             of_query * args.o.stride_s + column;
        store_global_16(to, {pack<kElement>(as_float(low.x), as_float(low.y)),
                             pack<kElement>(as_float(low.z), as_float(low.w)),
                             pack<kElement>(as_float(high.x), as_float(high.y)),
                             pack<kElement>(as_float(high.z), as_float(high.w))});
      }
    }
  }

  __forceinline__ void run() {
    while (enter()) {
      blocks();
      leave();
      named_barrier_sync(kThere, 128 * kWarpgroups);
      if (warpgroup > 0) continue;
      merge();
      store();
      named_barrier_arrive(kRead, 128 * kWarpgroups);
    }
  }
};

}  // namespace tilewise::mla_sm90
