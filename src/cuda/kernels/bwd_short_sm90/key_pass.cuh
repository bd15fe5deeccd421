/// bwd_short_sm90: a pass over keys, dK and dV of 64 of them a warpgroup.
#pragma once

#include "cuda/kernels/bwd_short_sm90/worker.cuh"
#include "cuda/tile/hopper/tile_counter.cuh"

namespace tilewise::bwd_short_sm90 {

using namespace tile;

/// Rows are keys, columns queries. dK and dV stay in registers.
template <Config kConfig>
struct KeyPass {
  static constexpr int kD = kConfig.head_dim, kDv = kConfig.head_dim_v;
  static constexpr Element kElement = kConfig.element;
  static constexpr u32 kDelta = Worker<kConfig>::kDelta;
  static constexpr int kPart = kRows * (kD + kDv);  ///< floats that a warpgroup hands over

  Worker<kConfig>& worker;
  float rS[kRows / 2];                                          ///< S, then P
  float rGradS[kRows / 2];                                      ///< dP
  u32 rP[kRows / 4], rPlow[kConfig.two_plane ? kRows / 4 : 1];  ///< and what rounding took
  u32 rdS[kRows / 4], rdSlow[kConfig.two_plane ? kRows / 4 : 1];
  bwd_sm90::LargeDimSums<kD> rDk;  ///< / scale
  bwd_sm90::LargeDimSums<kDv> rDv;

  __forceinline__ explicit KeyPass(Worker<kConfig>& w) : worker(w) {}

  // ---- products
  /// (B9) dK += dS^T Q
  __forceinline__ void issue_dk(u32 stage) {
    worker.template issue_sums<kConfig.two_plane>(rDk, rdS, rdSlow, worker.shared.stage(stage));
  }
  __forceinline__ void settle_dk() {
    rDk.pin_all();
    pin(rdS);
    if constexpr (kConfig.two_plane) pin(rdSlow);
  }
  /// (B3) dV += P^T dO
  __forceinline__ void issue_dv() {
    worker.template issue_sums<kConfig.two_plane>(rDv, rP, rPlow, worker.second());
  }

  // ---- scores

  __forceinline__ void mask_queries(int first, int block) {
    const int column = block * kRows + 2 * (worker.lane % 4);
    const Diagonals d = diagonals<kConfig>(worker.args, worker.job);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int begin = worker.row(first, r) - d.high + 1 - column;
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          bool hidden;
          if constexpr (kConfig.mask == Mask::both) {
            // Visible columns are a range: one comparison finds what lies outside.
            hidden = static_cast<u32>(8 * j + e - begin) >= static_cast<u32>(d.high - d.low);
          } else {
            hidden = 8 * j + e < begin;
          }
          if (hidden) rS[4 * j + 2 * r + e] = -infinity();
        }
      }
    }
  }
  /// (B1) P, packed. The minimum is taken after the exponential, of two at a time.
  template <bool kMasked>
  __forceinline__ void key_probabilities(int first, int block) {
    if constexpr (kMasked && kConfig.mask != Mask::none) mask_queries(first, block);
    const u32 from = worker.offset_of(block * kRows) + worker.lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const Floats2 l = load_shared_8(from + j * 32);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& a = rS[4 * j + 2 * r];
        float& b = rS[4 * j + 2 * r + 1];
        a = exp2_approx(__fmaf_rn(a, worker.args.scale_log2, l.x));
        b = exp2_approx(__fmaf_rn(b, worker.args.scale_log2, l.y));
        if constexpr (kConfig.two_plane) {
          a = min_nan(a, 1.0F);
          b = min_nan(b, 1.0F);
          pack_planes<kElement>(rP[2 * j + r], rPlow[2 * j + r], a, b);
        } else {
          rP[2 * j + r] = min_nan_2<kElement>(pack<kElement>(a, b), kOnes<kElement>);
        }
      }
    }
  }
  __forceinline__ void key_gradients(int block) {
    const u32 from = worker.offset_of(block * kRows) + kDelta + worker.lane % 4 * 8;
    Floats2 d;
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      if (i % 2 == 0) d = load_shared_8(from + i / 2 * 32);
      float a = rGradS[2 * i] - d.x, b = rGradS[2 * i + 1] - d.y;
      if constexpr (kConfig.two_plane) {
        a *= rS[2 * i];
        b *= rS[2 * i + 1];
      } else {
        a *= widen<kElement>(rP[i] & 0xffffU);
        b *= widen_high<kElement>(rP[i]);
      }
      pack_gradients<kConfig>(i, a, b, rdS, rdSlow);
    }
  }
  /// Rows that see no key add nothing, whatever they hold: their P is 0, but 0 times NaN is NaN. So
  /// Q and dO become 0 where they lie. CONTRACT 3
  /// Both warpgroups come here with the same block, whose S they are done with.
  __forceinline__ void hide_rows(int block) {
    if constexpr (!kConfig.hides_rows()) return;
    const u32 offsets = worker.offset_of(block * kRows);
    const int rows = min(kRows, queries_of<kConfig>(worker.args, worker.job) - block * kRows);
    const auto sees_nothing = [&](int row) {
      return row < rows && load_shared_f32(offsets + 4 * static_cast<u32>(row)) == -infinity();
    };
    const bool any = sees_nothing(worker.lane) || sees_nothing(worker.lane + 32);
    if (!__any_sync(~0U, any)) return;
    worker.sync_consumers();  // nobody reads Q any more
    const int t = opaque(worker.warpgroup * 128 + worker.thread);
    constexpr SharedPlan kPlan = Worker<kConfig>::kPlan;
    const auto place = [&](int i) {
      if constexpr (kConfig.halves()) {
        if (i * 16 >= kPlan.columns) return worker.second() - kPlan.columns + i * 16;
      }
      return worker.shared.stage(worker.stages.slot) + i * 16;
    };
#pragma unroll 1
    for (int i = t; i < (kPlan.columns + kPlan.columns_v) / 16; i += 256) {
      const int in_panel = i % (SharedPlan::kPanel / 16);
      if (sees_nothing(in_panel / 8)) store_shared_16(place(i), 0.0F, 0.0F, 0.0F, 0.0F);
    }
    fence_async_shared();
    worker.sync_consumers();  // the zeros are there, for all
  }
  template <bool kMasked>
  __forceinline__ void first_queries(int first, int block) {
    worker.wait_first();
    worker.issue_s(rS);
    wgmma_wait<0>();
    pin(rS);
    key_probabilities<kMasked>(first, block);
  }
  /// Entry: P of a block is ready, nothing is in flight. Exit: so is its dS, and dV has it; but for
  /// `two_plane` dK does not yet.
  __forceinline__ void gradients(int block) {
    worker.wait_second();
    hide_rows(block);
    if constexpr (kConfig.two_plane) {
      issue_dv();
      wgmma_wait<0>();
      rDv.pin_all();
      worker.issue_dp(rGradS);
      wgmma_wait<0>();
      pin(rGradS);
    } else {
      worker.issue_dp(rGradS);
      issue_dv();
      wgmma_wait<0>();
      pin(rGradS);
      rDv.pin_all();
    }
    worker.leave_second();
    key_gradients(block);
  }
  /// Entry: P of the block before is ready, nothing is in flight. Exit: the same of `block`.
  /// No branch may lie between a product and its wait, or ptxas serialises them (C7514).
  template <bool kMasked>
  __forceinline__ void next_queries(int first, int block) {
    gradients(block - 1);
    const u32 held = worker.stages.slot;
    worker.stages.advance();
    if constexpr (kConfig.two_plane) {
      issue_dk(held);
      wgmma_wait<0>();
      settle_dk();
      worker.leave_stage(held);
      first_queries<kMasked>(first, block);
    } else {
      worker.wait_first();
      issue_dk(held);
      worker.issue_s(rS);
      wgmma_wait<0>();
      pin(rS);
      settle_dk();
      worker.leave_stage(held);
      key_probabilities<kMasked>(first, block);
    }
  }
  /// From the first query on: blocks that a diagonal cuts, those seen whole, those that a window
  /// cuts.
  __forceinline__ void sum_keys(int first, const BlockRange& own) {
    int block = own.begin;
    if (block < own.full_begin || block >= own.full_end) {
      first_queries<true>(first, block);
    } else {
      first_queries<false>(first, block);
    }
    worker.settle();
    ++block;
    if constexpr (kConfig.mask != Mask::none) {
#pragma unroll 1
      for (; block < own.full_begin; ++block) next_queries<true>(first, block);
    }
#pragma unroll 1
    for (; block < own.full_end; ++block) next_queries<false>(first, block);
    if constexpr (kConfig.mask == Mask::both) {
#pragma unroll 1
      for (; block < own.end; ++block) next_queries<true>(first, block);
    }
    gradients(own.end - 1);
    issue_dk(worker.stages.slot);
    wgmma_wait<0>();
    settle_dk();
    worker.leave_stage(worker.stages.slot);
    worker.stages.advance();
  }
  /// A block of the pass whose queries do not see this warpgroup's keys.
  __forceinline__ void skip_queries(int block) {
    if constexpr (kConfig.hides_rows()) {
      worker.wait_stage();
      hide_rows(block);
    }
    worker.skip();
  }
  __forceinline__ void run(int pass) {
    const int begin = pass * kBlock, first = begin + worker.warpgroup * kRows;
    const BlockRange all = query_range<kConfig>(worker.args, worker.job, begin, kBlock);
    const BlockRange own = query_range<kConfig>(worker.args, worker.job, first, kRows);
    const bool any = own.begin < own.end;
    rDk.clear();
    rDv.clear();
    mbarrier_wait(worker.shared.kept_full(worker.kept.slot), worker.kept.parity);
#pragma unroll 1
    for (int g = 0; g < worker.args.group; ++g) {
      worker.find_statistics(g);
      int block = all.begin;
#pragma unroll 1
      for (; block < all.end && (!any || block < own.begin); ++block) skip_queries(block);
      if (!any) continue;
      sum_keys(first, own);
#pragma unroll 1
      for (block = own.end; block < all.end; ++block) skip_queries(block);
    }
    const float* parts = nullptr;
    if constexpr (kConfig.shares) {
      if (first < keys_of<kConfig>(worker.args, worker.job)) parts = hand_over(pass);
      if (parts == nullptr) {
        worker.leave_kept();
        return;
      }
    }
    leave(first, parts);
  }

  /// Hands over the warpgroup's sums. Null, or where this is the last of the group to do so the
  /// sums of all: nobody waits for another.
  __forceinline__ const float* hand_over(int pass) {
    const Args& args = worker.args;
    const int group = worker.job.head / args.sharers;
    const int passes = (keys_of<kConfig>(args, worker.job) + kBlock - 1) / kBlock;
    const int place =
        ((worker.job.batch * (args.heads_k / args.sharers) + group) * passes + pass) * 2 +
        worker.warpgroup;
    float* const parts = args.parts + static_cast<i64>(place) * args.sharers * kPart;
    float* const own = parts + (worker.job.head - group * args.sharers) * kPart;
    store_part(rDv, own);
    store_part(rDk, own + kRows * kDv);
    worker.sync_warpgroup();  // what all threads have stored
    const u32 at = worker.shared.last(worker.warpgroup);
    if (worker.thread == 0) {
      const TileCounter counter = {args.sharers_done.word + place, args.sharers_done.tag};
      store_shared_4(at, static_cast<u32>(comes_last(counter, args.sharers)));
    }
    worker.sync_warpgroup();
    return load_shared_4(at) != 0 ? parts : nullptr;
  }
  /// In the order of heads.
  template <int kColumns>
  __forceinline__ void add_parts(bwd_sm90::LargeDimSums<kColumns>& sums, const float* from) const {
    sums.clear();
#pragma unroll 1
    for (int n = 0; n < worker.args.sharers; ++n) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i)
        sums.r[i] += *(from + n * kPart + i * 128 + worker.thread);
    }
  }
  template <int kColumns>
  __forceinline__ void store_part(const bwd_sm90::LargeDimSums<kColumns>& sums, float* to) const {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) to[i * 128 + worker.thread] = sums.r[i];
  }

  __forceinline__ void store_keys(const TensorMapBytes& map, u32 from, int column,
                                  int first) const {
    if constexpr (kPacked<kConfig>) {
      int at[4];
      key_row<kConfig>(at, worker.args, worker.job, first);
      tma_store_5d(&map, from, column, at);
    } else {
      tma_store(&map, from, column, key_head<kConfig>(worker.args, worker.job), first,
                worker.job.batch);
    }
  }
  /// `parts`: shares, the sums to add up.
  __forceinline__ void leave(int first, const float* parts) {
    const u32 place = worker.shared.kept(worker.kept.slot, worker.warpgroup);
    const u32 place_v = worker.shared.kept_v(worker.kept.slot, worker.warpgroup);
    worker.sync_warpgroup();  // all four warps are done with what lies there
    if constexpr (kConfig.shares) add_parts(rDv, parts);
    bwd_sm90::stage_rows<kElement>(rDv, 1.0F, place_v, worker.warp, worker.lane);
    if constexpr (kConfig.shares) add_parts(rDk, parts + kRows * kDv);
    bwd_sm90::stage_rows<kElement>(rDk, worker.args.scale, place, worker.warp, worker.lane);
    fence_async_shared();
    worker.sync_warpgroup();
    if (worker.thread == 0 && first < keys_of<kConfig>(worker.args, worker.job)) {
      worker.template store<kDv>(
          place_v, [&](u32 from, int column) { store_keys(worker.args.dv, from, column, first); });
      worker.template store<kD>(
          place, [&](u32 from, int column) { store_keys(worker.args.dk, from, column, first); });
      bulk_commit();
    }
    worker.leave_kept();
  }
};

}  // namespace tilewise::bwd_short_sm90
