/// fwd_sm90: a consumer warpgroup: scores, softmax, values, epilogue of its 64 rows of each tile.
#pragma once

#include "cuda/kernels/fwd_sm90/listed.cuh"
#include "cuda/kernels/fwd_sm90/options.cuh"
#include "cuda/kernels/fwd_sm90/recompute.cuh"
#include "cuda/kernels/fwd_sm90/rows.cuh"
#include "cuda/kernels/fwd_sm90/skip.cuh"
#include "cuda/tile/hopper/wgmma.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

template <Config kConfig>
struct Consumer {
  static constexpr Modification kModification = kConfig.modification;
  static constexpr int kBlockN = kConfig.shape.block_n, kScores = Scores<kConfig>::kScores;
  static constexpr int kD = kConfig.head_dim, kDv = kConfig.head_dim_v;
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr int kTurnThreads = 256;  ///< a turn passes from one warpgroup to the next
  using ScoreProduct = Wgmma<kConfig.element, kBlockN>;
  using ValueProduct = Wgmma<kConfig.element, kDv>;
  static_assert(goes_together(kConfig));

  Scores<kConfig> scores;  ///< S, then P; m, l
  const Args& args;
  const Shared<kConfig> shared;
  const int warpgroup;
  const int thread = static_cast<int>(threadIdx.x) & 127, warp = thread / 32;  ///< of the warpgroup
  const int lane = thread % 32;
  float rO[kDv / 2];
  const u64 dQ, dK, dV;  ///< descriptors of the first buffer
  Ring<kConfig.shape.stages> rK;
  Ring<kConfig.shape.value_stages> rV;
  Ring<kConfig.shape.q_buffers> rQ;
  Ring<2> slots;
  BoxPlace<kConfig> boxes;
  Tile tile;
  BlockRange blocks;  ///< of this warpgroup's rows
  int tile_begin = 0, tile_end = 0;
  bool first_halved = false;  ///< halve_cut: of the first block only the left half is visible
  int tile_k = 0;             ///< a list: which tile of keys the block at hand is
  int next_tile_k = 0;        ///< beside a mask: and the one after it
  u32 listed = ~0U;           ///< parts of it that the warp lists, a bit a score of a row
  u32 rP[kBlockN / 4];        ///< P as the products take it

  __forceinline__ Consumer(const Args& a, u32 shared_base, int group)
      : args(a),
        shared{shared_base},
        warpgroup(group),
        dQ(panel_descriptor(shared.q(0, group), 16)),
        dK(panel_descriptor(shared.k(0), 16)),
        dV(panel_descriptor(shared.v(0), kBlockN * kPanelRowBytes)) {}

  /// What the caller's functions and the options take of the kernel's parameters.
  template <class AnyArgs>
  __forceinline__ void hold(const AnyArgs& any) {
    scores.captures = captures_of(any);
    if constexpr (kConfig.options.any()) scores.options = options_of(any);
  }

  /// The first query of the warpgroup's rows.
  __forceinline__ int group_query() const {
    return first_query<kConfig>(args, tile) + warpgroup * warpgroup_queries<kConfig>(args);
  }

  // ---- hand-over with the producer and among warpgroups

  __forceinline__ void wait_k() const {
    mbarrier_wait(shared.k_full(static_cast<int>(rK.slot)), rK.parity);
    see_rows();
  }
  __forceinline__ void wait_v() const {
    mbarrier_wait(shared.v_full(static_cast<int>(rV.slot)), rV.parity);
    see_rows();
  }
  /// Rows that threads have copied, to the tensor cores: the copy engine's they see without it.
  __forceinline__ void see_rows() const {
    if constexpr (kConfig.pages == PageCopies::rows) fence_async_shared();
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
    if (kConfig.shape.own_o ? lane == 0 : thread == 0) {
      mbarrier_arrive(shared.q_empty(static_cast<int>(rQ.slot), warpgroup));
    }
    rQ.advance();
  }
  /// Ping-pong: the products of one warpgroup run under the softmax of the others. One turn for
  /// every block of the tile but one, skipped ones included.
  __forceinline__ void await_turn() const {
    if constexpr (kConfig.schedule.ping_pong) named_barrier_sync(1 + warpgroup, kTurnThreads);
  }
  __forceinline__ void pass_turn() const {
    if constexpr (kConfig.schedule.ping_pong) {
      named_barrier_arrive(1 + (warpgroup + 1) % kConfig.shape.warpgroups, kTurnThreads);
    }
  }

  __forceinline__ void fetch_tile() {
    const int s = static_cast<int>(slots.slot);
    mbarrier_wait(shared.tile_full(s), slots.parity);
    load_tile(tile, shared, s);
    if constexpr (kListed<kConfig>) {
      // Tiles of the list from its end on: those that a mask cuts, then those seen whole.
      blocks.end = tile.split;
      blocks.full_end = static_cast<int>(load_shared_4(shared.slot(s) + 28));
    }
    __syncwarp();  // all lanes have read the slot
    if (lane == 0) mbarrier_arrive(shared.tile_empty(s));
    slots.advance();
    if constexpr (kListed<kConfig>) return;
    const BlockRange all = tile_range<kConfig>(args, tile);
    tile_begin = all.begin;
    tile_end = all.end;
    own_range<kConfig>(blocks, args, tile, group_query(), all);
  }

  // ---- scores

  /// (F1) S = Q K^T, issued. `between` is called behind each product with its number.
  template <class Between = NoCall>
  __forceinline__ void issue_scores(Between between = {}) {
    const u64 q = kConfig.shape.q_buffers == 1 ? dQ : dQ + rQ.slot * (kPlan.q_buffer / 16);
    const u64 k = dK + rK.slot * (kPlan.k_stage / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kD / 16; ++i) {
      ScoreProduct::multiply_shared(
          scores.rS, q + (i / 4) * (SharedPlan::kPanel / 16) + (i % 4) * kStepColumns,
          k + (i / 4) * (kBlockN * kPanelRowBytes / 16) + (i % 4) * kStepColumns, i != 0);
      between(i);
    }
    wgmma_commit();
  }

  // ---- softmax step

  /// The thread's first kCount scores; `half`: those begin there. kLifts: see add_bias.
  template <bool kMasked, int kCount = kScores, bool kLifts = true>
  __forceinline__ void adjust_scores(int block, int half = 0) {
    const int first = group_query();
    if constexpr (kListed<kConfig>) block = tile_k;
    const int column =
        key_block<kConfig>(args, tile, block) * kBlockN + half * (kBlockN / 2) + 2 * (lane % 4);
    const int of[2] = {query<kConfig>(*this, first, 0), query<kConfig>(*this, first, 1)};
    const int shift = keys<kConfig>(args, tile) - queries<kConfig>(args, tile);
    const int high = diagonals<kConfig>(args, tile).high;
    scores.template modify<kMasked, kCount>(args, of, shift, high, column, lane);
    if constexpr (kConfig.options.bias())
      add_bias<kConfig, kLifts || Scores<kConfig>::kCalls>(*this, block);
    if constexpr (kConfig.expressions.any()) {
      // What a block list does not mask is full: no mask applies there.
      scores.template apply_expressions<kMasked || !kListed<kConfig>>(
          args, corner_of<kConfig>(args, tile, first + warp * 16, column - 2 * (lane % 4)),
          opaque(lane));
    }
    if constexpr (kMasked) {
      if constexpr (kConfig.shows_cut()) {
        if (scores.knows_cut()) return scores.hide_cut(scores.rS);
      }
      if constexpr (kConfig.options.tree) take_tree<kConfig>(*this, of, column);
      scores.template mask_rows<kCount>(args, tile, of, column,
                                        kConfig.lists == Lists::parts ? listed : ~0U);
    } else if constexpr (kConfig.options.mask && !kListed<kConfig>) {
      scores.mask_shown();
    }
  }
  __forceinline__ void pack_p() {
    scores.drop();
#pragma unroll
    for (int i = 0; i < kBlockN / 4; ++i)
      rP[i] = pack<kConfig.element>(scores.rS[2 * i], scores.rS[2 * i + 1]);
  }

  // ---- accumulate

  /// (F10) O += P V, issued. `between`: of issue_scores().
  template <class Between = NoCall>
  __forceinline__ void issue_values(Between between = {}) {
    const u64 v = dV + rV.slot * (kPlan.v_stage / 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kBlockN / 16; ++i) {
      ValueProduct::multiply_register(rO, rP[4 * i], rP[4 * i + 1], rP[4 * i + 2], rP[4 * i + 3],
                                      v + i * kStepRows);
      between(i);
    }
    wgmma_commit();
  }
  __forceinline__ void finish_values() {
    wgmma_wait<0>();
    pin(rO);
    pin(rP);
    release_v();
  }
  /// The same of a step, where products() has not waited for them.
  __forceinline__ void finish_step_values() {
    if constexpr (!kConfig.schedule.values_first) finish_values();
  }

  __forceinline__ void scale_o() {
#pragma unroll
    for (int i = 0; i < kDv / 2; ++i) rO[i] *= scores.alpha[i / 2 % 2];
  }

  __forceinline__ void rescale_o() {
    if (!kConfig.schedule.lazy_rescale ||
        __any_sync(~0U, scores.alpha[0] != 1.0F || scores.alpha[1] != 1.0F))
      scale_o();
  }

  /// Scores of a block beside the values of the block before, and dropout's bits between or under
  /// both.
  __forceinline__ void products(int block) {
    BitsBetween<kConfig, Consumer> bits(*this, block);
    if constexpr (kConfig.schedule.values_first) {
      wait_v();
      wait_k();
      await_turn();
      issue_values([&](int i) { bits.template make<0, kBlockN / 16>(i); });
      issue_scores([&](int i) { bits.template make<1, kD / 16>(i); });
      pass_turn();
      bits.finish();
      finish_values();
      pin(scores.rS);
      return;
    }
    wait_k();
    await_turn();
    issue_scores([&](int i) { bits.template make<0, kD / 16>(i); });
    wait_v();
    issue_values([&](int i) { bits.template make<1, kBlockN / 16>(i); });
    pass_turn();
    bits.finish();
    wgmma_wait<1>();  // S; O is still being summed
    pin(scores.rS);
  }

  /// The products, then the block's softmax. `kSeen`: rows that see a key of the block have seen
  /// one before, or it is looked at whether they have: their maxima may be trusted.
  template <bool kMasked, bool kSeen = !kMasked>
  __forceinline__ void step(int block) {
    take_listed<kConfig>(*this);
    if constexpr (kMasked) take_cut<kConfig>(*this);
    take_options<kConfig, kMasked>(*this, block);
    products(block);
    if constexpr (kConfig.trusts_maxima() && kSeen && kModification != Modification::softcap) {
      trusted_step<kMasked>(block);
    } else {
      release_k();
      if constexpr (kConfig.options.bias()) finish_step_values();  // lifts take their registers
      bool trusted = false;
      if constexpr (kModification == Modification::softcap && kConfig.trusts_maxima() && !kMasked) {
        trusted = scores.trusted_softcap(args);
        if (!trusted) scores.template apply_softcap<kMasked>(args);
      } else {
        adjust_scores<kMasked>(block);
        release_boxes<kConfig>(*this);
      }
      if (!trusted) scores.template softmax<false>(args);
      if constexpr (!kConfig.options.bias()) finish_step_values();
      // P may be packed only now: the products that just ended read it. So may O be scaled.
      if (!trusted) rescale_o();
      pack_p();
    }
  }

  /// The softmax of a block without a search for its maxima, K kept until P is known to hold.
  template <bool kMasked>
  __forceinline__ void trusted_step(int block) {
    trusted_exponentials<kScores>([&] { adjust_scores<kMasked, kScores, false>(block); },
                                  [&] { adjust_scores<kMasked>(block); }, [&] { pack_p(); });
  }
  /// P of the thread's first kCount scores. `adjust` makes them of the product, `again` of one made
  /// once more, beside a bias also where maxima are searched for, `pack` the operand.
  template <int kCount, class Adjust, class Again, class Pack>
  __forceinline__ void trusted_exponentials(Adjust adjust, Again again, Pack pack) {
    if constexpr (!kConfig.options.bias()) adjust();
    bool searches = kConfig.expressions.score != 0 && scores.outgrown > scores.kMostOutgrown;
    if constexpr (kModification == Modification::alibi) searches |= scores.nears;
    if constexpr (kConfig.leans()) searches |= !scores.tied;
    // Rows that have seen nothing yet have no maximum to trust.
    if constexpr (kConfig.options.mask || kConfig.options.bias())
      searches |= __any_sync(~0U, !(fmaxf(fabsf(scores.m[0]), fabsf(scores.m[1])) <= kHugeMaximum));
    bool holds = false;
    if (!searches) {
      if constexpr (kConfig.options.bias()) adjust();
      holds = scores.template trusted_softmax<kCount>(args);
      if constexpr (kConfig.schedule.values_first)
        pack();  // beside the exponentials: no branch between
    }
    if (lane == 0 && (holds || searches))
      mbarrier_arrive(shared.k_empty(static_cast<int>(rK.slot)));
    if constexpr (kConfig.schedule.boxes_apart) free_boxes<kConfig>(*this, holds);
    finish_step_values();
    if (!holds) {
      if (!searches) {
        recompute_scores();
        if constexpr (!kConfig.options.bias()) again();
        if constexpr (kConfig.expressions.score != 0) ++scores.outgrown;
      }
      if constexpr (kConfig.options.bias()) again();
      scores.template softmax<false, false, kCount>(args);
      scale_o();
      if constexpr (kConfig.schedule.values_first) pack();
    }
    if constexpr (!kConfig.schedule.values_first) pack();
    release_boxes<kConfig>(*this, kConfig.schedule.boxes_apart && holds);
    rK.advance();
  }
  __forceinline__ void recompute_scores() {
    recompute<kConfig>(scores.rS, shared.q(static_cast<int>(rQ.slot), warpgroup),
                       shared.k(static_cast<int>(rK.slot)), warp, lane);
    __syncwarp();  // all lanes have read K
    if (lane == 0) mbarrier_arrive(shared.k_empty(static_cast<int>(rK.slot)));
  }

  // ---- halves: a cut block of which these rows see one half only

  /// P of the hidden half is 0.
  __forceinline__ void pack_half(int half) {
#pragma unroll
    for (int i = 0; i < kBlockN / 8; ++i) {
      rP[half * (kBlockN / 8) + i] = pack<kConfig.element>(scores.rS[2 * i], scores.rS[2 * i + 1]);
      rP[(1 - half) * (kBlockN / 8) + i] = 0;
    }
  }
  __forceinline__ void take_right_half(int block) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) scores.rS[i] = scores.rS[kScores / 2 + i];
    adjust_scores<true, kScores / 2>(block, 1);
  }
  /// The last block of a window, its left half hidden.
  __forceinline__ void half_step(int block) {
    products(block);
    const auto take = [&] { take_right_half(block); };
    trusted_exponentials<kScores / 2>(take, take, [&] { pack_half(1); });
  }

  /// What scores take of the tile's batch entry and head.
  __forceinline__ void enter_tile() {
    constexpr bool kAlibi = Scores<kConfig>::kAddsAlibi && kConfig.expressions.score == 0;
    if constexpr (kAlibi || kModification == Modification::general) {
      scores.slope =
          args.alibi == nullptr
              ? 0.0F
              : kLog2e * args.alibi[tile.batch * args.alibi_b + tile.head * args.alibi_h];
    }
    if constexpr (kConfig.expressions.any()) scores.enter_place(args, tile);
  }
  /// From the finished scores of the first block to P of the last.
  __forceinline__ void process_blocks() {
    int block = blocks.end - 1;
#pragma unroll
    for (int i = 0; i < kDv / 2; ++i) rO[i] = 0.0F;
    if (kConfig.schedule.halve_cut && first_halved) {
      adjust_scores<true, kScores / 2>(block);
      scores.template softmax<true, kConfig.schedule.lazy_rescale, kScores / 2>(args);
      pack_half(0);
    } else {
      if (block >= blocks.full_end || (kConfig.mask == Mask::both && block < blocks.full_begin)) {
        adjust_scores<true>(block);
      } else {
        adjust_scores<false>(block);
      }
      release_boxes<kConfig>(*this);
      scores.template softmax<true>(args);
      pack_p();
    }
    --block;
    if constexpr (kConfig.mask != Mask::none || kListed<kConfig>) {
#pragma unroll 1
      for (; block >= blocks.begin && block >= blocks.full_end; --block)
        step<true, kListed<kConfig> && kConfig.options.mask>(block);
    }
    constexpr bool kCutOnLeft = kConfig.mask == Mask::both && !kListed<kConfig>;
    const int full_begin = kCutOnLeft ? blocks.full_begin : blocks.begin;
#pragma unroll 1
    for (; block >= full_begin; --block) step<false>(block);
    // What is cut on the left alone: its rows have seen all keys from there to their right edge.
    if constexpr (kCutOnLeft) {
#pragma unroll 1
      for (; block >= blocks.begin; --block) {
        if (kConfig.schedule.halve_cut && block == blocks.begin &&
            visible_half<kConfig>(*this, block) == 1) {
          half_step(block);
          break;
        }
        step<true, true>(block);
      }
    }
  }

  // ---- epilogue

  /// Rows of this warpgroup that see no key of the tile: O = 0, LSE = -inf. CONTRACT 3
  __forceinline__ void finish_empty_tile() {
    wait_q();  // not read, but its place may be where O is staged
    if (group_query() < queries<kConfig>(args, tile)) {
      scores.m[0] = scores.m[1] = -infinity();
      scores.l[0] = scores.l[1] = 0.0F;
#pragma unroll
      for (int i = 0; i < kDv / 2; ++i) rO[i] = 0.0F;
      const Finished done{tile, group_query()};
      finish_rows<kConfig>(*this, done);
      store_o<kConfig>(*this, done);
    } else if constexpr (!kConfig.shape.own_o) {
      // One thread releases Q for all warps: a warp that still waited would miss the Q's phase.
      sync_warpgroup<kConfig>(*this);
    }
    release_q();
  }

  __forceinline__ void first_scores_wait() {
    wgmma_wait<0>();
    pin(scores.rS);
    release_k();
  }

  __forceinline__ void run() {
    if (kConfig.schedule.ping_pong && warpgroup == kConfig.shape.warpgroups - 1)
      pass_turn();  // the first turn is warpgroup 0's
    fetch_tile();
    while (tile.block >= 0) {
      skip_right<kConfig, false>(*this);
      if (blocks.begin >= blocks.end) {
        finish_empty_tile();
        fetch_tile();
        continue;
      }
      wait_q();
      wait_k();
      if constexpr (kConfig.schedule.halve_cut)
        first_halved = visible_half<kConfig>(*this, blocks.end - 1) == 0;
      take_listed<kConfig>(*this);
      take_first_cut<kConfig>(*this);
      take_first_options<kConfig>(*this, blocks.end - 1);
      issue_scores();
      first_scores_wait();
      while (true) {
        enter_tile();
        process_blocks();
        if constexpr (kConfig.shape.own_o) release_q();
        const Finished done{tile, group_query()};
        if constexpr (kConfig.schedule.chain_tiles) {
          fetch_tile();
          if (tile.block >= 0 && blocks.begin < blocks.end) {
            const int skipped = skip_right<kConfig, true>(*this);
            if constexpr (kConfig.schedule.halve_cut)
              first_halved = visible_half<kConfig>(*this, blocks.end - 1) == 0;
            take_first_options<kConfig>(*this, blocks.end - 1);
            wait_v();
            issue_values();
            wait_q();
            wait_k();
            issue_scores();
            finish_rows<kConfig>(*this, done);
            wgmma_wait<1>();
            pin(rO);
            pin(rP);
            release_v();
            store_o<kConfig>(*this, done);
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
        finish_rows<kConfig>(*this, done);
        finish_values();
        skip_left<kConfig>(*this);
        store_o<kConfig>(*this, done);
        if constexpr (!kConfig.shape.own_o) release_q();
        break;
      }
      if constexpr (!kConfig.schedule.chain_tiles) fetch_tile();
    }
    if (thread == 0) bulk_wait_read();  // shared memory must outlive the copies out of it
  }
};

}  // namespace tilewise::fwd_sm90
