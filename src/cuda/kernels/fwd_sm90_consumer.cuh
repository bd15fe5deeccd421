/// fwd_sm90: the consumer, a warpgroup: scores, softmax, values, epilogue of 64 query rows of each
/// tile.
#pragma once

#include "cuda/kernels/fwd_sm90_scores.cuh"
#include "cuda/tile/tma.cuh"
#include "cuda/tile/warpgroup.cuh"
#include "cuda/tile/wgmma.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

template <Config kConfig>
struct Consumer : Scores<kConfig> {
  using Base = Scores<kConfig>;
  using Base::alpha, Base::l, Base::m, Base::rS, Base::slope;
  using Base::kModification;
  static constexpr int kBlockN = kConfig.block_n;
  static constexpr int kD = kConfig.head_dim, kDv = kConfig.head_dim_v;
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr int kTurnThreads = 256;  ///< a turn passes from one warpgroup to the next
  using ScoreProduct = Wgmma<kConfig.element, kBlockN>;
  using ValueProduct = Wgmma<kConfig.element, kDv>;
  static_assert(!kConfig.chain_tiles ||
                (kConfig.mask != Mask::both && kConfig.own_o && !kConfig.split));
  static_assert(!kConfig.ping_pong || kConfig.warpgroups > 1);
  static_assert(!kConfig.trust_maxima || kModification != Modification::general);

  const Args& args;
  const Shared<kConfig> shared;
  const int warpgroup, thread, warp, lane;  ///< thread, warp: of the warpgroup
  const u64 dQ, dK, dV;                     ///< descriptors of the first buffer
  Ring<kConfig.stages> rK, rV;
  Ring<kConfig.q_buffers> rQ;
  Ring<2> slots;
  Tile tile;
  BlockRange blocks;  ///< of this warpgroup's rows
  int tile_begin = 0, tile_end = 0;
  float rO[kDv / 2];
  u32 rP[kBlockN / 4];

  __forceinline__ Consumer(const Args& a, u32 shared_base, int group)
      : args(a),
        shared{shared_base},
        warpgroup(group),
        thread(static_cast<int>(threadIdx.x) & 127),
        warp(thread / 32),
        lane(thread % 32),
        dQ(panel_descriptor(shared.q(0, group), 16)),
        dK(panel_descriptor(shared.k(0), 16)),
        dV(panel_descriptor(shared.v(0), kBlockN * kPanelRowBytes)) {}

  // ---- rows: 16 of a warp, two of a thread (r = 0, 1)

  __forceinline__ int local_row(int r) const { return warp * 16 + lane / 4 + 8 * r; }
  /// The first query of the warpgroup's rows.
  __forceinline__ int group_query() const {
    return first_query<kConfig>(args, tile) + warpgroup * warpgroup_queries<kConfig>(args);
  }
  __forceinline__ int query(int first, int r) const {
    return first + (kConfig.pack_heads ? local_row(r) >> args.pack_shift : local_row(r));
  }
  __forceinline__ int head(const Tile& t, int r) const {
    if constexpr (!kConfig.pack_heads) return t.head;
    return t.head * args.group + (local_row(r) & ((1 << args.pack_shift) - 1));
  }
  /// False for rows past the last query, and for heads that a group has not.
  __forceinline__ bool exists(const Finished& done, int r) const {
    bool in_group = true;
    if constexpr (kConfig.pack_heads)
      in_group = (local_row(r) & ((1 << args.pack_shift) - 1)) < args.group;
    return in_group && query(done.query, r) < queries<kConfig>(args, done.tile);
  }

  // ---- hand-over with the producer and among warpgroups

  __forceinline__ void wait_k() const {
    mbarrier_wait(shared.k_full(static_cast<int>(rK.slot)), rK.parity);
  }
  __forceinline__ void wait_v() const {
    mbarrier_wait(shared.v_full(static_cast<int>(rV.slot)), rV.parity);
  }
  __forceinline__ void wait_q() const {
    mbarrier_wait(shared.q_full(static_cast<int>(rQ.slot), warpgroup), rQ.parity);
  }
  __forceinline__ void release_k() {
    if (lane == 0) mbarrier_arrive(shared.k_empty(static_cast<int>(rK.slot)));
    rK.advance();
  }
  __forceinline__ void release_v() {
    if (lane == 0) mbarrier_arrive(shared.v_empty(static_cast<int>(rV.slot)));
    rV.advance();
  }
  /// Q's place is free: at once, or (O in its place) when O has been copied out.
  __forceinline__ void release_q() {
    if (kConfig.own_o ? lane == 0 : thread == 0) {
      mbarrier_arrive(shared.q_empty(static_cast<int>(rQ.slot), warpgroup));
    }
    rQ.advance();
  }
  /// Ping-pong: the products of one warpgroup run under the softmax of the others. One turn for
  /// every block of the tile but one, skipped ones included.
  __forceinline__ void await_turn() const {
    if constexpr (kConfig.ping_pong) named_barrier_sync(1 + warpgroup, kTurnThreads);
  }
  __forceinline__ void pass_turn() const {
    if constexpr (kConfig.ping_pong) {
      named_barrier_arrive(1 + (warpgroup + 1) % kConfig.warpgroups, kTurnThreads);
    }
  }
  __forceinline__ void sync_warpgroup() const { named_barrier_sync(8 + warpgroup, 128); }

  __forceinline__ void fetch_tile() {
    const int s = static_cast<int>(slots.slot);
    mbarrier_wait(shared.tile_full(s), slots.parity);
    const Bytes16 words = load_shared_16(shared.slot(s));
    tile.block = static_cast<int>(words.x);
    tile.batch = static_cast<int>(words.y);
    tile.head = static_cast<int>(words.z);
    tile.split = static_cast<int>(words.w);
    if constexpr (kConfig.lengths != Lengths::dense) {
      const Bytes16 lengths = load_shared_16(shared.slot(s) + 16);
      tile.seq_q = static_cast<int>(lengths.x);
      tile.seq_k = static_cast<int>(lengths.y);
      tile.q_begin = static_cast<int>(lengths.z);
    }
    __syncwarp();  // all lanes have read the slot
    if (lane == 0) mbarrier_arrive(shared.tile_empty(s));
    slots.advance();
    const BlockRange all = tile_range<kConfig>(args, tile);
    tile_begin = all.begin;
    tile_end = all.end;
    own_range<kConfig>(blocks, args, tile, group_query(), all);
  }

  /// Blocks of the tile right of this warpgroup's own: K and V in turn, or the producer could wait
  /// for V's place while this waits for K. With kKeysOnly the number of V blocks still to pass over
  /// is given back.
  template <bool kKeysOnly>
  __forceinline__ int skip_right() {
    int skipped = 0;
    if constexpr (kConfig.skip_blocks) {
      for (int block = tile_end - 1; block >= blocks.end && block >= tile_begin; --block) {
        wait_k();
        if (block > tile_begin) {
          await_turn();
          pass_turn();
        }
        release_k();
        if constexpr (kKeysOnly) {
          ++skipped;
        } else {
          wait_v();
          release_v();
        }
      }
    }
    return skipped;
  }
  __forceinline__ void skip_left() {
    if constexpr (kConfig.skip_blocks && kConfig.mask == Mask::both) {
      for (int block = blocks.begin - 1; block >= tile_begin; --block) {
        wait_k();
        await_turn();
        pass_turn();
        release_k();
        wait_v();
        release_v();
      }
    }
  }

  // ---- scores

  /// (F1) S = Q K^T, issued
  __forceinline__ void issue_scores() {
    const u64 q = kConfig.q_buffers == 1 ? dQ : dQ + rQ.slot * (kPlan.q_buffer / 16);
    const u64 k = dK + rK.slot * (kPlan.k_stage / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kD / 16; ++i) {
      ScoreProduct::multiply_shared(
          rS, q + (i / 4) * (SharedPlan::kPanel / 16) + (i % 4) * kStepColumns,
          k + (i / 4) * (kBlockN * kPanelRowBytes / 16) + (i % 4) * kStepColumns, i != 0);
    }
    wgmma_commit();
  }

  // ---- softmax step

  template <bool kMasked>
  __forceinline__ void adjust_scores(int block) {
    const int first = group_query(), column = block * kBlockN + 2 * (lane % 4);
    const int rows[2] = {query(first, 0), query(first, 1)};
    const int seq_k = keys<kConfig>(args, tile);
    Base::template modify<kMasked>(args, rows, seq_k - queries<kConfig>(args, tile), column, lane);
    if constexpr (kMasked) {
      const Diagonals d = diagonals<kConfig>(args, tile);
      int begin[2] = {}, end[2] = {seq_k - column, seq_k - column};
      if constexpr (kConfig.mask != Mask::none) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          end[r] = min(end[r], rows[r] + d.high - column);
          if constexpr (kConfig.mask == Mask::both) begin[r] = rows[r] + d.low - column;
        }
      }
      Base::mask(begin, end);
    }
  }

  __forceinline__ void pack_p() {
#pragma unroll
    for (int i = 0; i < kBlockN / 4; ++i) rP[i] = pack<kConfig.element>(rS[2 * i], rS[2 * i + 1]);
  }

  // ---- accumulate

  /// (F10) O += P V, issued
  __forceinline__ void issue_values() {
    const u64 v = dV + rV.slot * (kPlan.v_stage / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kBlockN / 16; ++i) {
      ValueProduct::multiply_register(rO, rP[4 * i], rP[4 * i + 1], rP[4 * i + 2], rP[4 * i + 3],
                                      v + i * kStepRows);
    }
    wgmma_commit();
  }
  __forceinline__ void finish_values() {
    wgmma_wait<0>();
    pin(rO);
    pin(rP);
    release_v();
  }

  __forceinline__ void scale_o() {
#pragma unroll
    for (int i = 0; i < kDv / 2; ++i) rO[i] *= alpha[i / 2 % 2];
  }

  __forceinline__ void rescale_o() {
    if (!kConfig.lazy_rescale || __any_sync(~0U, alpha[0] != 1.0F || alpha[1] != 1.0F)) scale_o();
  }

  /// Scores of `block` beside the values of the block before, then its softmax.
  template <bool kMasked>
  __forceinline__ void step(int block) {
    wait_k();
    await_turn();
    issue_scores();
    wait_v();
    issue_values();
    pass_turn();
    wgmma_wait<1>();  // S; O is still being summed
    pin(rS);
    if constexpr (kConfig.trust_maxima && !kMasked && kModification != Modification::softcap) {
      trusted_step(block);
    } else {
      release_k();
      bool trusted = false;
      if constexpr (kModification == Modification::softcap && kConfig.trust_maxima && !kMasked) {
        trusted = Base::trusted_softcap(args);
        if (!trusted) Base::template bend<kMasked>(args);
      } else {
        adjust_scores<kMasked>(block);
      }
      if (!trusted) Base::template softmax<false>(args);
      finish_values();
      // P may be packed only now: the products that just ended read it. So may O be scaled.
      if (!trusted) rescale_o();
    }
    pack_p();
  }

  /// The softmax of an uncut block without a search for its maxima, K kept until P is known to
  /// hold.
  __forceinline__ void trusted_step(int block) {
    adjust_scores<false>(block);
    const bool holds = Base::trusted_softmax(args);
    const u32 k_empty = shared.k_empty(static_cast<int>(rK.slot));
    if (lane == 0 && holds) mbarrier_arrive(k_empty);
    finish_values();
    if (!holds) {
      Base::recompute(shared.q(static_cast<int>(rQ.slot), warpgroup),
                      shared.k(static_cast<int>(rK.slot)), warp, lane);
      __syncwarp();  // all lanes have read K
      if (lane == 0) mbarrier_arrive(k_empty);
      adjust_scores<false>(block);
      Base::template softmax<false, false>(args);
      scale_o();
    }
    rK.advance();
  }

  /// From the finished scores of the first block to P of the last.
  __forceinline__ void process_blocks() {
    int block = blocks.end - 1;
#pragma unroll
    for (int i = 0; i < kDv / 2; ++i) rO[i] = 0.0F;
    if (block >= blocks.full_end || (kConfig.mask == Mask::both && block < blocks.full_begin)) {
      adjust_scores<true>(block);
    } else {
      adjust_scores<false>(block);
    }
    Base::template softmax<true>(args);
    pack_p();
    --block;
    if constexpr (kConfig.mask != Mask::none) {
#pragma unroll 1
      for (; block >= blocks.begin && block >= blocks.full_end; --block) step<true>(block);
    }
    const int full_begin = kConfig.mask == Mask::both ? blocks.full_begin : blocks.begin;
#pragma unroll 1
    for (; block >= full_begin; --block) step<false>(block);
    if constexpr (kConfig.mask == Mask::both) {
#pragma unroll 1
      for (; block >= blocks.begin; --block) step<true>(block);
    }
  }

  // ---- epilogue

  /// Row of the parts' workspace, split only.
  __forceinline__ i64 part_row(const Tile& t, int h, int i) const {
    i64 row = t.q_begin + i;
    if constexpr (kConfig.lengths == Lengths::packed) {
      row += static_cast<i64>(h) * args.q_rows;
    } else {
      row += (static_cast<i64>(t.batch) * args.heads_q + h) * args.seq_q;
    }
    return t.split * args.part_rows + row;
  }

  /// (F11) alpha = 1 / l, (F11) LSE = m + log l
  __forceinline__ void finish_rows(const Finished& done) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      l[r] = quad_sum(l[r]);
      alpha[r] = l[r] == 0.0F ? 0.0F : 1.0F / l[r];
      if (lane % 4 != 0 || !exists(done, r)) continue;
      const float lse = (m[r] + log2_approx(l[r])) * kLn2;
      const int i = query(done.query, r), h = head(done.tile, r);
      if constexpr (kConfig.split) {
        args.lse_part[part_row(done.tile, h, i)] = lse;
      } else if (args.lse != nullptr) {
        args.lse[done.tile.batch * args.lse_b + h * args.lse_h +
                 (done.tile.q_begin + i) * args.lse_s] = lse;
      }
    }
    if constexpr (!kConfig.split) {
      // O's staging place is free: own, when the tile before has been copied out; in Q's place,
      // when all four warps are done with Q.
      if (kConfig.own_o && thread == 0) bulk_wait_read();
      sync_warpgroup();
    }
  }

  __forceinline__ void store_o(const Finished& done) {
    if constexpr (kConfig.split) {
      store_parts(done);
    } else {
      const u32 sO = shared.o(warpgroup);
      const int row = warp * 16 + lane % 16;
#pragma unroll
      for (int k = 0; k < kDv / 16; ++k) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          words[i] = pack<kConfig.element>(rO[8 * k + 2 * i] * alpha[i % 2],
                                           rO[8 * k + 2 * i + 1] * alpha[i % 2]);
        }
        const int chunk = (k % 4 * 2 + lane / 16) ^ (row % 8);
        store_matrix_x4(sO + (k / 4) * SharedPlan::kPanel + row * kPanelRowBytes + chunk * 16,
                        words);
      }
      fence_async_shared();
      sync_warpgroup();  // the whole warpgroup has staged its rows
      const bool exists = kConfig.lengths != Lengths::packed || done.query < done.tile.seq_q;
      if (thread == 0 && exists) {
        for (int p = 0; p < SharedPlan::panels(kDv); ++p) {
          const u32 from = sO + p * SharedPlan::kPanel;
          if constexpr (kQueryRank5<kConfig>) {
            int at[4];
            query_coordinates<kConfig>(at, args, done.tile, done.query);
            tma_store_5d(&args.o, from, p * kPanelColumns, at);
          } else {
            tma_store(&args.o, from, p * kPanelColumns, done.tile.head, done.query,
                      done.tile.batch);
          }
        }
        bulk_commit();
        if (!kConfig.own_o) bulk_wait_read();
      }
    }
  }

  __forceinline__ void store_parts(const Finished& done) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!exists(done, r)) continue;
      const i64 row = part_row(done.tile, head(done.tile, r), query(done.query, r));
      float* to = args.o_part + row * kDv + 2 * (lane % 4);
#pragma unroll
      for (int j = 0; j < kDv / 8; ++j) {
        store_global_8(to + 8 * j, rO[4 * j + 2 * r] * alpha[r], rO[4 * j + 2 * r + 1] * alpha[r]);
      }
    }
  }

  /// Rows of this warpgroup that see no key of the tile: O = 0, LSE = -inf. CONTRACT 3
  __forceinline__ void finish_empty_tile() {
    wait_q();  // not read, but its place may be where O is staged
    if (group_query() < queries<kConfig>(args, tile)) {
      m[0] = m[1] = -infinity();
      l[0] = l[1] = 0.0F;
#pragma unroll
      for (int i = 0; i < kDv / 2; ++i) rO[i] = 0.0F;
      const Finished done{tile, group_query()};
      finish_rows(done);
      store_o(done);
    }
    release_q();
  }

  __forceinline__ void first_scores_wait() {
    wgmma_wait<0>();
    pin(rS);
    release_k();
  }

  __forceinline__ void run() {
    if (kConfig.ping_pong && warpgroup == kConfig.warpgroups - 1)
      pass_turn();  // the first turn is warpgroup 0's
    fetch_tile();
    while (tile.block >= 0) {
      skip_right<false>();
      if (blocks.begin >= blocks.end) {
        finish_empty_tile();
        fetch_tile();
        continue;
      }
      wait_q();
      wait_k();
      issue_scores();
      first_scores_wait();
      while (true) {
        if constexpr (kConfig.modification == Modification::alibi ||
                      kConfig.modification == Modification::general) {
          slope = args.alibi == nullptr
                      ? 0.0F
                      : kLog2e * args.alibi[tile.batch * args.alibi_b + tile.head * args.alibi_h];
        }
        process_blocks();
        if constexpr (kConfig.own_o) release_q();
        const Finished done{tile, group_query()};
        if constexpr (kConfig.chain_tiles) {
          fetch_tile();
          if (tile.block >= 0 && blocks.begin < blocks.end) {
            const int skipped = skip_right<true>();
            wait_v();
            issue_values();
            wait_q();
            wait_k();
            issue_scores();
            finish_rows(done);
            wgmma_wait<1>();
            pin(rO);
            pin(rP);
            release_v();
            store_o(done);
            first_scores_wait();
            for (int i = 0; i < skipped; ++i) {
              wait_v();
              release_v();
            }
            continue;
          }
        }
        wait_v();
        issue_values();
        finish_rows(done);
        finish_values();
        skip_left();
        store_o(done);
        if constexpr (!kConfig.own_o) release_q();
        break;
      }
      if constexpr (!kConfig.chain_tiles) fetch_tile();
    }
    if (thread == 0) bulk_wait_read();  // shared memory must outlive the copies out of it
  }
};

}  // namespace tilewise::fwd_sm90
