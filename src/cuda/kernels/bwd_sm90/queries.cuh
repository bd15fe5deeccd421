/// bwd_sm90: the warpgroup that has dQ alone: of a tile of 128 keys, whose dS two others make.
#pragma once

#include "cuda/kernels/bwd_sm90/worker.cuh"
#include "cuda/tile/exact_sum.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

template <Config kConfig>
struct Queries {
  using Base = Worker<kConfig>;
  static constexpr Element kElement = Base::kElement;
  static constexpr int kM = Base::kM, kBlockN = Base::kBlockN;
  static constexpr SharedPlan kPlan = Base::kPlan;
  static constexpr int kColumns = kConfig.columns_dq();
  /// Products of 64 queries x 64 columns, which lie one below the other or side by side.
  static constexpr int kParts = kM / 64 * ((kColumns + 63) / 64);
  /// Columns of the last one.
  static constexpr int kLastColumns = kColumns % 64 == 0 ? 64 : kColumns % 64;
  static constexpr bool kBelow = kM == 128;
  static_assert(!kBelow || kColumns == 64);
  static constexpr int kStage = 16 * 64 * 4;  ///< bytes that a warp adds at once

  Worker<kConfig> worker;
  const u64 dSt, dKt;  ///< dS as A, K as B of dQ, of the first part and buffers
  Ring<2> buffers;
  float rDq[32];

  __forceinline__ Queries(const Args& a, u32 shared_base)
      : worker(a, shared_base, 2),
        dSt(panel_descriptor(worker.shared.ds(0), 16)),
        dKt(panel_descriptor(worker.shared.k(0), kBlockN * kPanelRowBytes)) {}

  /// (B8) dQ = dS K of a part, over kKeys keys from `first` on
  template <int kKeys, int kN>
  __forceinline__ void multiply(float (&sums)[kN / 2], int part, int first = 0) {
    constexpr u32 kPanel = kBlockN * kPanelRowBytes / 16;
    const u32 skipped = first / 16 * kStepRows;
    const u64 ds =
        dSt + buffers.slot * (kPlan.ds_buffer / 16) + (kBelow ? part * kPanel : 0) + skipped;
    const u64 k =
        dKt + worker.rK.slot * (kPlan.k_stage / 16) + (kBelow ? 0 : part * kPanel) + skipped;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      Wgmma<kElement, kN>::multiply_transposed(sums, ds + i * kStepRows, k + i * kStepRows, i != 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(sums);
  }
  /// The warp's place for a part, of two in turn, when the copy engine has read what was staged
  /// there before.
  __forceinline__ u32 await_stage(int part) const {
    const u32 place = kParts == 1 ? buffers.slot : part % 2;
    if (worker.lane == 0) bulk_wait_read<1>();
    __syncwarp();  // it has
    return worker.shared.dq(worker.warp) + place * kStage;
  }
  /// Stages the warp's 16 rows x kN columns; the copy engine adds them.
  template <int kN>
  __forceinline__ void add(const float (&sums)[kN / 2], int part, float* to) const {
    const u32 stage = await_stage(part);
#pragma unroll
    for (int i = 0; i < kN / 8; ++i) {
      store_shared_16(stage + (i * 32 + worker.lane) * 16, sums[4 * i], sums[4 * i + 1],
                      sums[4 * i + 2], sums[4 * i + 3]);
    }
    fence_async_shared();
    __syncwarp();
    if (worker.lane == 0) {
      bulk_add(to, stage, 16 * kN * 4);
      bulk_commit();
    }
  }
  /// Adds dS of the warp's 32 keys and of 64 queries to the sums by i - j: first blocks of 8 x 8
  /// along a diagonal of blocks, then what the threads have of each diagonal, by way of the place
  /// where dQ is staged next.
  __forceinline__ void add_diagonals(int part, int bh, int block) const {
    constexpr int kKeys = 32, kBlocks = kKeys / 8 + 7;   // diagonals of blocks
    constexpr int kSums = kKeys + 64 - 1, kPitch = 105;  // floats of a row of a block; banks differ
    static_assert((7 * kPitch + kSums) * 4 <= kStage);
    const int lane = worker.lane, warp = worker.warp;
    float sums[kBlocks][2] = {};
    const u32 panel = worker.shared.ds(buffers.slot) +
                      (kBelow ? part * kBlockN * kPanelRowBytes : 0) +
                      (kKeys * warp + lane) * kPanelRowBytes;
    const int row = lane / 4, first = 2 * (lane % 4) - row + 7;
    const u32 stage = await_stage(part), to_row = stage + 4 * (row * kPitch + first);
    // A diagonal of blocks leaves the registers when its last block has come.
    const auto store = [&](int m) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        store_shared_4(to_row + 4 * (8 * m + e), static_cast<u32>(__float_as_int(sums[m][e])));
    };
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      u32 r[4];  // four blocks of keys
      load_matrix_x4(r, panel + (c ^ lane % 8) * 16);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        sums[c - k + 3][0] += widen<kElement>(r[k] & 0xffffU);
        sums[c - k + 3][1] += widen_high<kElement>(r[k]);
      }
      store(c);
    }
#pragma unroll
    for (int m = 8; m < kBlocks; ++m) store(m);
    __syncwarp();  // all lanes' sums are there
    const int query = block * kM + (kBelow ? 64 * part : 0);
    const int key = worker.job.block * kBlockN + kKeys * warp;
    // Packed sequences have sums of their own.
    const int of = kPacked<kConfig> ? worker.job.batch * worker.args.heads_q + bh : bh;
    const i64 to = static_cast<i64>(of) * worker.args.diagonal_count + query - key - (kKeys - 1) +
                   worker.args.last_key;
#pragma unroll
    for (int n = 0; n < (kSums + 31) / 32; ++n) {
      const int t = 32 * n + lane;
      if (t >= kSums) continue;
      float sum = 0.0F;
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        const bool has = static_cast<u32>(t + r - 7) < static_cast<u32>(8 * kBlocks);
        if (has) sum += load_shared_f32(stage + 4 * static_cast<u32>(r * kPitch + t));
      }
      if constexpr (kConfig.sums.deterministic) {
        add_exactly(reinterpret_cast<u64*>(worker.args.diagonals) + (to + t) * ExactSum::kWords,
                    sum);
      } else {
        atomicAdd(worker.args.diagonals + to + t, sum);
      }
    }
    // Staging waits for all lanes itself: see await_stage().
  }
  /// A part of a step, of kN columns.
  template <int kN>
  __forceinline__ void add_part(float (&sums)[kN / 2], int part, float* to, u32 halves) {
    if (kConfig.passes && halves != 3) {
      multiply<kBlockN / 2, kN>(sums, part, halves == 2 ? kBlockN / 2 : 0);
    } else {
      multiply<kBlockN, kN>(sums, part);
    }
    if (part == kParts - 1) worker.release(worker.shared.ds_empty(buffers.slot));
    add<kN>(sums, part, to);
  }
  /// dQ of a block of queries, or of a plane of its dS, added to its sums
  /// `halves`: of the keys, a bit each, of which there is dS
  __forceinline__ void step(int bh, int block, bool first_plane = true, u32 halves = 3) {
    float* to =
        worker.args.dq_sum + (static_cast<i64>(bh) * worker.args.rows_q +
                              kept_row<kConfig>(worker.job) + block * kM + 16 * worker.warp) *
                                 kColumns;
    if constexpr (kConfig.sums.deterministic) {
      if (worker.lane == 0 && first_plane) {
        worker.pass_turn();
        worker.await_turn(worker.turn_at(bh, block), bh, block);
      } else if (worker.lane == 0) {
        bulk_wait();  // the first has been added
      }
      __syncwarp();
    }
    mbarrier_wait(worker.shared.ds_full(buffers.slot), buffers.parity);
    constexpr int kWhole = kLastColumns == 64 ? kParts : kParts - 1;
#pragma unroll 1
    for (int part = 0; part < kWhole; ++part) {
      if constexpr (kConfig.sums.diagonals) {
        if (kBelow || part == 0) add_diagonals(part, bh, block);
      }
      if (kConfig.passes && halves != 3) {
        multiply<kBlockN / 2, 64>(rDq, part, halves == 2 ? kBlockN / 2 : 0);
      } else {
        multiply<kBlockN, 64>(rDq, part);
      }
      if (part == kParts - 1) worker.release(worker.shared.ds_empty(buffers.slot));
      add<64>(rDq, part, to + part * (kBelow ? 64 * kColumns : 16 * 64));
    }
    if constexpr (kWhole < kParts) {
      float sums[kLastColumns / 2];
      add_part<kLastColumns>(sums, kWhole, to + kWhole * 16 * 64, halves);
    }
    buffers.advance();
  }

  /// The same for the block that the consumers name.
  __forceinline__ void listed_step() {
    mbarrier_wait(worker.shared.ds_full(buffers.slot), buffers.parity);
    const u32 of = worker.shared.ds_of(buffers.slot);
    const int bh = static_cast<int>(load_shared_4(of));
    const int block = static_cast<int>(load_shared_4(of + 4));
    step(bh, block, true, kConfig.passes ? load_shared_4(of + 8) : 3);
    if constexpr (kConfig.two_plane) step(bh, block, false);
  }

  __forceinline__ void run_tile() {
    const BlockRange range = worker.tile_range();
    if (range.begin < range.end) {
      mbarrier_wait(worker.shared.k_full(worker.rK.slot), worker.rK.parity);
      const int of =
          entry_of<kConfig>(worker.job) * worker.args.heads_q + worker.job.head * worker.args.group;
      if constexpr (kConfig.listed()) {
#pragma unroll 1
        for (int n = 0; n < range.end; ++n) listed_step();
      } else {
#pragma unroll 1
        for (int g = 0; g < worker.args.group; ++g) {
#pragma unroll 1
          for (int block = range.begin; block < range.end; ++block) {
            step(of + g, block);
            if constexpr (kConfig.two_plane) step(of + g, block, false);
          }
        }
      }
      worker.release(worker.shared.k_empty(worker.rK.slot));
      worker.rK.advance();
    }
    __syncwarp();  // the signal of lane 0 is for the additions of all
    if (worker.lane == 0) {
      bulk_wait();
      fence_async();
      if constexpr (kConfig.sums.deterministic) worker.pass_turn();
      if constexpr (kConfig.spans) {
        signal_add(
            worker.args.finished + counted<kConfig>(worker.args, worker.job, worker.job.head), 1);
      } else {
        signal_add(worker.args.finished + entry_of<kConfig>(worker.job) * worker.args.heads_k +
                       worker.job.head,
                   1);
      }
    }
  }

  __forceinline__ void run() {
    worker.fetch_job();
    while (worker.job.kind != JobKind::end) {
      if (worker.job.kind == JobKind::tile) run_tile();
      if (worker.job.kind == JobKind::convert) worker.sync_all();  // rows take the place of dQ
      worker.fetch_job();
    }
    if (worker.lane == 0) bulk_wait_read();  // shared memory must outlive the copies out of it
  }
};

}  // namespace tilewise::bwd_sm90
