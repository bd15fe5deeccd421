/// bwd_sm90: a warp of those who compute: how it takes jobs from the producer, hands over what it
/// has read and written, and the jobs that only pass rows through.
#pragma once

#include "cuda/kernels/bwd_sm90/boxes.cuh"
#include "cuda/kernels/bwd_sm90/rows.cuh"
#include "cuda/tile/hopper/ptx/warpgroup.cuh"
#include "cuda/tile/hopper/signal.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// With a list: how many blocks of queries see the tile at hand.
template <bool kListed>
struct ListedSteps {};
template <>
struct ListedSteps<true> {
  int steps = 0;
};

template <Config kConfig>
struct Worker : ListedSteps<kConfig.listed()> {
  static constexpr int kM = kConfig.shape.block_m, kBlockN = kConfig.shape.block_n;
  static constexpr int kD = kConfig.head_dim, kDv = kConfig.head_dim_v;
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr int kSlot = 64 * kPanelRowBytes;  ///< 64 rows of a panel
  static constexpr Element kElement = kConfig.element;

  const Args& args;
  const Shared<kConfig> shared;
  const int warpgroup, thread, warp, lane;  ///< thread, warp: of the warpgroup
  Ring<kConfig.shape.q_stages> rQ;
  Ring<kConfig.shape.do_stages> rO;
  Ring<kConfig.shape.k_stages> rK;
  Ring<2> slots;
  u32 all_parity = 0;
  Job job;
  u32 converted = 0;           ///< jobs in a row
  u32* unsignalled = nullptr;  ///< counter of a job whose stores may still be on their way
  u32* turn_taken = nullptr;   ///< deterministic: of the last addition
  u32 held_k = 0;              ///< split: barrier of K that a part's sums were staged in, or 0

  __forceinline__ Worker(const Args& a, u32 shared_base, int group)
      : args(a),
        shared{shared_base},
        warpgroup(group),
        thread(static_cast<int>(threadIdx.x) & 127),
        warp(thread / 32),
        lane(thread % 32) {}

  // ---- hand-over

  __forceinline__ void sync_warpgroup() const { named_barrier_sync(8 + warpgroup, 128); }
  /// All who compute.
  __forceinline__ void sync_all() {
    __syncwarp();
    release(shared.all_met());
    mbarrier_wait(shared.all_met(), all_parity);
    all_parity ^= 1;
  }
  /// Those who read Q and dO.
  __forceinline__ void sync_consumers() const { named_barrier_sync(1, 256); }
  /// Of V's only stage, which a tile uses as it uses one of K.
  __forceinline__ u32 v_parity() const { return kConfig.shape.k_stages == 2 ? rK.slot : rK.parity; }
  __forceinline__ void wait_q() const { mbarrier_wait(shared.q_full(rQ.slot), rQ.parity); }
  __forceinline__ void wait_do() const { mbarrier_wait(shared.do_full(rO.slot), rO.parity); }
  __forceinline__ void release(u32 barrier) const {
    if (lane == 0) mbarrier_arrive(barrier);
  }
  /// Waits for the producer. NOTE: it may itself wait for a signal of another block that waits for
  /// this block's signal: so signal before waiting.
  __forceinline__ void await_producer(u32 barrier, u32 parity) {
    if (lane == 0 && !mbarrier_try_wait(barrier, parity)) signal_done();
    __syncwarp();
    mbarrier_wait(barrier, parity);
  }
  /// Tells whoever waits for the last job that its stores and additions are complete: late, when
  /// they are, so that nobody here waits for them.
  __forceinline__ void signal_done() {
    if (lane == 0 && unsignalled != nullptr) {
      bulk_wait();
      fence_async();
      if constexpr (kConfig.sums.deterministic) pass_turn();
      signal_add(unsignalled, 1);
      if constexpr (kConfig.sums.split) {
        if (held_k != 0) mbarrier_arrive(held_k);
      }
    }
    unsignalled = nullptr;
    if constexpr (kConfig.sums.split) held_k = 0;
  }

  __forceinline__ void fetch_job() {
    await_producer(shared.job_full(slots.slot), slots.parity);
    job = load_job<kConfig>(shared.slot(slots.slot));
    if constexpr (kConfig.listed()) {
      const u32 at = shared.slot(slots.slot) + Shared<kConfig>::kSlotBytes - 16;
      this->steps = static_cast<int>(load_shared_4(at));
      job.part = static_cast<int>(load_shared_4(at + 4));
    }
    __syncwarp();  // all lanes have read the slot
    release(shared.job_empty(slots.slot));
    slots.advance();
  }

  /// Blocks of queries that see the tile's keys, with a list in its order.
  __forceinline__ BlockRange tile_range() const {
    if constexpr (kConfig.listed()) {
      return {0, this->steps, job.part, this->steps};
    } else {
      return query_range<kConfig>(args, job);
    }
  }

  // ---- deterministic: a warp's fragments of a block of queries are added to in the order of the
  // key blocks

  __forceinline__ u32* turn_at(int of_bh, int of_block) const {
    if constexpr (!kConfig.sums.deterministic) return nullptr;
    return args.turns +
           (static_cast<i64>(of_bh) * (args.rows_q / kM) + kept_row<kConfig>(job) / kM + of_block) *
               kConfig.dq_warps() +
           warp;
  }
  /// Lane 0: the last addition is complete, the next key block may add.
  __forceinline__ void pass_turn() {
    bulk_wait();
    if (turn_taken == nullptr) return;
    fence_async();
    signal_add(turn_taken, 1);
    turn_taken = nullptr;
  }
  /// How many tiles of keys add to a listed block of queries before this one.
  __forceinline__ u32 listed_before(int of_bh, int of_block) const {
    const TileLists& of = listed<kConfig>(args).of_queries;
    const int head = of_bh % args.heads_q;
    const i64 list = static_cast<i64>(job.batch) * of.list_b + head * of.list_h;
    const unsigned* row = of.bits + (list * of.rows + of_block) * 2 * of.words;
    const int here = job.block / 32, bit = job.block % 32;
    u32 before = 0;
    const int first = args.last_first ? here : 0, end = args.last_first ? of.words : here + 1;
    for (int w = first; w < end; ++w) {
      u32 bits = row[w] | row[of.words + w];
      if (w == here) bits &= args.last_first ? ~((2U << bit) - 1) : (1U << bit) - 1;
      before += static_cast<u32>(__popc(bits));
    }
    return before;
  }
  /// Lane 0: key blocks that come before this one have added.
  __forceinline__ void await_turn(u32* turn, int bh, int block) {
    u32 before = 0;
    if constexpr (kConfig.listed()) {
      before = listed_before(bh, block);
    } else {
      const int row = block * kM;
      const BlockRange keys = key_blocks<kBlockN>(diagonals<kConfig>(args, job), row,
                                                  min(row + kM, queries_of<kConfig>(args, job)),
                                                  keys_of<kConfig>(args, job));
      before = args.last_first ? keys.end - 1 - job.block : job.block - keys.begin;
    }
    signal_wait(turn, before);
    fence_async();
    turn_taken = turn;
  }

  // ---- jobs that pass rows through

  /// Whether the thread's row, `row` of what the caller gave, saw its sink alone: O = 0, LSE =
  /// sink. O has landed.
  __forceinline__ bool saw_sink_alone(int row, bool exists, int t) const {
    if (args.sinks == nullptr) return false;
    const bool may =
        exists && args.lse_in[job.batch * args.lse_b + job.head * args.lse_h + row * args.lse_s] ==
                      args.sinks[job.head * args.sinks_h];
    if (!__any_sync(~0U, may)) return false;
    const u32 sO = shared.q(rQ.slot);
    return row_products<kConfig>(sO, sO, t) == 0.0F && may;
  }

  /// (B2) delta = rowsum(dO O) - dLSE; offset = -LSE in the scores' domain, -inf where a row saw no
  /// key and past the end: P = 2^-inf is then 0 without a mask.
  __forceinline__ void run_prepare() {
    constexpr int kThreads = 256 / kM;  // of a row
    const int t = warpgroup * 128 + thread, first = job.block * kConfig.shape.chunk_rows;
    const i64 base =
        static_cast<i64>(entry_of<kConfig>(job) * args.heads_q + job.head) * args.rows_q +
        kept_row<kConfig>(job) + first;
    const int given = first + (kPacked<kConfig> ? job.q_begin : 0);  // row of what the caller gave
    constexpr int kRowsEach = (kConfig.shape.chunk_rows + 255) / 256;
    float lse[kRowsEach];  // asked for first, used last
#pragma unroll
    for (int n = 0; n < kRowsEach; ++n) {
      const int row = t + 256 * n;
      lse[n] = -infinity();
      if (row < kConfig.shape.chunk_rows && first + row < queries_of<kConfig>(args, job)) {
        lse[n] = args.lse_in[job.batch * args.lse_b + job.head * args.lse_h +
                             (given + row) * args.lse_s];
      }
    }
    signal_done();  // before this job's stores, which it would wait for
    if constexpr (!kConfig.large_dim()) clear_sums<kConfig>(args, base, t);
    u32 alone = 0;  // bit n: of the thread's n-th row
#pragma unroll 1
    for (int row0 = 0; row0 < rows_of_chunk<kConfig>(job); row0 += kM) {
      await_producer(shared.q_full(rQ.slot), rQ.parity);
      wait_do();
      float delta = row_products<kConfig>(shared.q(rQ.slot), shared.d_o(rO.slot), t);
      const int row = row0 + t / kThreads;
      const bool exists = first + row < queries_of<kConfig>(args, job);
      const bool is_alone = saw_sink_alone(given + row, exists, t);
      if (is_alone || !exists) delta = 0.0F;
      if (is_alone) alone |= 1U << (row0 / kM);
      __syncwarp();  // all lanes have read
      release(shared.q_empty(rQ.slot));
      release(shared.do_empty(rO.slot));
      rQ.advance();
      rO.advance();
      if (t % kThreads != 0) continue;
      if (args.delta_in != nullptr) {
        if (exists) {
          delta = args.delta_in[static_cast<i64>(entry_of<kConfig>(job) * args.heads_q + job.head) *
                                    args.delta_rows +
                                given + row];
        }
      } else if (args.d_lse != nullptr && exists) {
        delta -= args.d_lse[job.batch * args.d_lse_b + job.head * args.d_lse_h +
                            (given + row) * args.d_lse_s];
      }
      args.delta[base + row] = delta;
    }
#pragma unroll
    for (int n = 0; n < kRowsEach; ++n) {
      const int row = t + 256 * n;
      if (row >= kConfig.shape.chunk_rows) break;
      if constexpr (kConfig.shifts()) {
        const bool exists = first + row < queries_of<kConfig>(args, job);
        const i64 at =
            (static_cast<i64>(job.batch) * args.heads_q + job.head) * args.delta_rows + given + row;
        args.offset[base + row] = exists ? -args.lse2_in[at] : -infinity();
        args.offset_low[base + row] = exists ? args.low_in[at] : 0.0F;
      } else {
        args.offset[base + row] = lse[n] == -infinity() ? lse[n] : lse[n] * args.offset_factor;
      }
    }
    if (args.sinks != nullptr) {
      sync_consumers();  // over what other threads wrote
      for (int n = 0; n < kConfig.shape.chunk_rows / kM; ++n) {
        if (t % kThreads == 0 && (alone >> n & 1) != 0)
          args.offset[base + n * kM + t / kThreads] = -infinity();
      }
    }
    __syncwarp();  // the signal of lane 0 is for the stores of all
    // NOTE: written out, since a sum of 32 bits changes the code of every other kernel.
    unsignalled = args.prepared + entry_of<kConfig>(job) * args.heads_k + job.head / args.group;
    if constexpr (kConfig.spans)
      unsignalled = args.prepared + counted<kConfig>(args, job, job.head / args.group);
  }

  /// Sums of dQ to dQ.
  __forceinline__ void run_convert() {
    // Two places in turn, or one of both: what was staged in this one has been read.
    constexpr int kChunkBytes = kConfig.shape.chunk_rows * SharedPlan::panels(kD) * kPanelRowBytes;
    constexpr int kBoxRows = kConfig.shape.chunk_box();
    constexpr bool kTwoPlaces =
        2 * kPlan.ds_buffer >= kChunkBytes && kPlan.bias - kPlan.dq >= kChunkBytes;
    static_assert(kPlan.bias - kPlan.ds >= kChunkBytes);
    static_assert(kConfig.shape.chunk_rows % kBoxRows == 0);
    const u32 to = kTwoPlaces && converted % 2 == 0 ? shared.dq(0) : shared.ds(0);
    // The third warpgroup may stand behind a block that waits for this signal.
    signal_done();
    if (lane == 0) {
      if (kTwoPlaces && converted > 0) {
        bulk_wait_read<1>();
      } else {
        bulk_wait_read();
      }
    }
    sync_all();
    ++converted;
#pragma unroll 1
    for (int piece = 0; piece < Piece<kConfig>::kCount; piece += 2) {
      await_producer(shared.q_full(rQ.slot), rQ.parity);
      convert_piece<kConfig>(shared.q(rQ.slot), to, piece, args.scale, warpgroup * 4 + warp, lane);
      __syncwarp();
      release(shared.q_empty(rQ.slot));
      rQ.advance();
      if constexpr (Piece<kConfig>::in_do(1)) {
        await_producer(shared.do_full(rO.slot), rO.parity);
        convert_piece<kConfig>(shared.d_o(rO.slot), to, piece + 1, args.scale, warpgroup * 4 + warp,
                               lane);
        __syncwarp();
        release(shared.do_empty(rO.slot));
        rO.advance();
      } else {
        await_producer(shared.q_full(rQ.slot), rQ.parity);
        convert_piece<kConfig>(shared.q(rQ.slot), to, piece + 1, args.scale, warpgroup * 4 + warp,
                               lane);
        __syncwarp();
        release(shared.q_empty(rQ.slot));
        rQ.advance();
      }
    }
    signal_done();
    fence_async_shared();
    sync_consumers();
    if (warpgroup == 0 && thread == 0) {
      for (int p = 0; p < SharedPlan::panels(kD); ++p) {
        for (int row = 0; row < rows_of_chunk<kConfig>(job); row += kBoxRows) {
          store_queries<kConfig>(
              args, args.dq, to + (p * kConfig.shape.chunk_rows + row) * kPanelRowBytes,
              p * kPanelColumns, job, job.block * kConfig.shape.chunk_rows + row);
        }
      }
      bulk_commit();
    }
  }
};

}  // namespace tilewise::bwd_sm90
