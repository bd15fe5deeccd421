/// bwd_sm90: the consumers, two warpgroups of 64 keys each, and what they do of each job.
#pragma once

#include "cuda/kernels/bwd_sm90_steps.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

template <Config kConfig>
struct Consumer : Steps<kConfig> {
  using Base = Steps<kConfig>;
  using Base::args;
  using Base::Base;
  /// Every block is taken as masked where a second loop costs registers that are not there.
  static constexpr bool kOneLoop = kConfig.block_m == 64 && kConfig.mask == Mask::both;
  using Base::block;
  using Base::fetch_job;
  using Base::first_step;
  using Base::job;
  using Base::kBlockN;
  using Base::kD;
  using Base::kDv;
  using Base::kElement;
  using Base::kM;
  using Base::kPlan;
  using Base::kSlot;
  using Base::lane;
  using Base::pair;
  using Base::rDk;
  using Base::rDv;
  using Base::shared;
  using Base::signal_done;
  using Base::sync_consumers;
  using Base::sync_warpgroup;
  using Base::thread;
  using Base::unsignalled;
  using Base::warp;
  using Base::warpgroup;

  __forceinline__ void run_tile() {
    const BlockRange range = query_range<kConfig>(args, job);
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) rDk[i] = 0.0F;
#pragma unroll
    for (int i = 0; i < kDv / 2; ++i) rDv[i] = 0.0F;
    if (range.begin < range.end) {
      const int head = job.head * args.group;
      pair = job.batch * args.heads_q + head;
      this->load_slope(head);
      first_step(range);
      signal_done();
      // What was staged of the job before has been read: its place is dS's and dQ's again.
      if (thread == 0) bulk_wait_read();
      sync_consumers();
      int next = range.begin + 1;
#pragma unroll 1
      for (int g = 0; g < args.group; ++g) {
        if (g > 0) {
          this->load_slope(head + g);
          next = range.begin;
        }
        const int of = job.batch * args.heads_q + head + g;
        // A block that follows another head's is taken as masked, whatever it is: one loop less.
        int masked_end = kOneLoop ? range.end : max(range.full_begin, range.begin + 1);
#pragma unroll 1
        while (true) {
#pragma unroll 1
          for (; next < masked_end; ++next) this->template step<true, false>(of, next);
          if constexpr (!kOneLoop) {
#pragma unroll 1
            for (; next < range.full_end; ++next) this->template step<false, false>(of, next);
          }
          if (next >= range.end) break;
          masked_end = range.end;
        }
      }
      this->template step<false, true>(0, 0);
    } else {
      signal_done();
    }
    unsignalled = args.finished + job.batch * args.heads_k + job.head;
    if constexpr (!kConfig.split) {
      store_tile();
    } else if (range.begin < range.end) {
      add_tile<kDv>(args.dv_sum, rDv);
      add_tile<kD>(args.dk_sum, rDk);
    }
  }

  /// Adds dK or dV of the tile's part to the sums, in the way of dQ: 64 columns at a time, staged
  /// per warp.
  template <int kColumns>
  __forceinline__ void add_tile(float* sums, const float (&r)[kColumns / 2]) const {
    static_assert(!kConfig.split || (kD == kDv && kPlan.dq_warp == 4096));
    const u32 stage = shared.dq(warpgroup * 4 + warp);
    const i64 row = static_cast<i64>(job.batch * args.heads_k + job.head) * args.rows_k +
                    job.block * kBlockN + warpgroup * 64 + warp * 16;
#pragma unroll
    for (int c = 0; c < kColumns; c += 64) {
      if (lane == 0) bulk_wait_read();
      __syncwarp();  // the copy engine has read what was staged before
#pragma unroll
      for (int j = c / 8; j < kColumns / 8 && j < c / 8 + 8; ++j) {
        store_shared_16(stage + ((j - c / 8) * 32 + lane) * 16, r[4 * j], r[4 * j + 1],
                        r[4 * j + 2], r[4 * j + 3]);
      }
      fence_async_shared();
      __syncwarp();
      if (lane == 0) {
        const int columns = kColumns - c < 64 ? kColumns - c : 64;
        bulk_add(sums + row * kConfig.columns_dq() + c * 16, stage, columns * 64);
        bulk_commit();
      }
    }
  }

  /// Where panel `index` of what a warpgroup stores is staged: only where the warpgroup itself
  /// writes dS and dQ.
  __forceinline__ u32 staging(int index) const {
    constexpr int kPanels = kM / 64;  // of a buffer of dS
    if (index < 2 * kPanels) {
      return shared.ds(0) + index * (kBlockN * kPanelRowBytes) + warpgroup * kSlot;
    }
    return shared.dq(warpgroup * 4) + (index - 2 * kPanels) * kSlot;
  }
  template <int kColumns>
  __forceinline__ void stage(const float (&r)[kColumns / 2], float factor, int first) const {
    const int row = warp * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
      u32 words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = pack<kElement>(r[8 * k + 2 * i] * factor, r[8 * k + 2 * i + 1] * factor);
      }
      const int chunk = (k % 4 * 2 + lane / 16) ^ (row % 8);
      store_matrix_x4(staging(first + k / 4) + row * kPanelRowBytes + chunk * 16, words);
    }
  }
  /// dK and dV of the tile to memory. dS and dQ are out of use.
  __forceinline__ void store_tile() {
    constexpr int kPanels = SharedPlan::panels(kD), kPanelsV = SharedPlan::panels(kDv);
    static_assert(kPanels + kPanelsV <= 2 * (kM / 64) + 4 * kPlan.dq_warp / kSlot);
    if (lane == 0 || thread == 0) bulk_wait_read();
    sync_consumers();  // both warpgroups' last products with dS, and their additions' reads
    stage<kDv>(rDv, 1.0F, 0);
    stage<kD>(rDk, args.scale, kPanelsV);
    fence_async_shared();
    sync_warpgroup();
    if (thread == 0) {
      const int row = job.block * kBlockN + warpgroup * 64;
      for (int p = 0; p < kPanelsV; ++p) {
        tma_store(&args.dv, staging(p), p * kPanelColumns, job.head, row, job.batch);
      }
      for (int p = 0; p < kPanels; ++p) {
        tma_store(&args.dk, staging(kPanelsV + p), p * kPanelColumns, job.head, row, job.batch);
      }
      bulk_commit();
    }
  }

  __forceinline__ void run() {
    fetch_job();
    while (job.kind != JobKind::end) {
      if (job.kind == JobKind::tile) {
        run_tile();
        this->converted = 0;
      } else if (job.kind == JobKind::prepare) {
        this->run_prepare();
      } else {
        this->run_convert();
      }
      fetch_job();
    }
    signal_done();
    if (lane == 0) bulk_wait_read();  // shared memory must outlive the copies out of it
  }
};

}  // namespace tilewise::bwd_sm90
