/// bwd_sm90: how dK and dV of a consumer's tile leave: to memory, or added to the sums of a tile
/// that is cut into parts.
#pragma once

#include "cuda/kernels/bwd_sm90/consumer.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

// ---- tiles that are cut

/// Where this warp's fragments of a tile lie in the sums of dK or dV.
template <Config kConfig>
template <int kColumns>
__forceinline__ float* Consumer<kConfig>::sums_at(float* sums, int tile) const {
  return sums + (static_cast<i64>(tile) * kBlockN +
                 (scores.worker.warpgroup * 4 + scores.worker.warp) * 16) *
                    kColumns;
}
template <Config kConfig>
__forceinline__ u32 Consumer<kConfig>::place(int index) const {
  const Worker<kConfig>& worker = scores.worker;
  constexpr int kPanel = kBlockN * kPanelRowBytes;
  const u32 own = worker.warpgroup * kSlot + worker.warp * (kSlot / 4);
  if (index < kOfV) return worker.shared.v() + index * kPanel + own;
  if (index < kOfV + kOfS) return staging(index - kOfV) + worker.warp * (kSlot / 4);
  return worker.shared.k(worker.rK.slot ^ 1) + (index - kOfV - kOfS) * kPanel + own;  // of the tile
}
/// dV, then dK, from a turn on.
template <Config kConfig>
template <int kTurn>
__forceinline__ void Consumer<kConfig>::add_sums(float* dv_sum, float* dk_sum) {
  Worker<kConfig>& worker = scores.worker;
  // V is free for the next tile when what was staged there has been read.
  constexpr bool kLetsGo = kOfV > 0 && kTurn == (kTurns < kPlaces ? kTurns : kPlaces);
  if constexpr (kTurn >= kPlaces && kTurn < kTurns) {
    if (worker.lane == 0) bulk_wait_read<turns_since(kTurn) - 1>();
    __syncwarp();
  } else if constexpr (kLetsGo) {
    if (worker.lane == 0) bulk_wait_read<kTurn - kOfV>();
  }
  if constexpr (kLetsGo) worker.release(worker.shared.v_empty());
  if constexpr (kTurn < kTurns) {
    if constexpr (kTurn == kOfV) await_buffer();
    if constexpr (kTurn == kOfV + kM / 64) await_buffers();
    constexpr bool kIsDv = kTurn < kDv / 32;
    constexpr int kFirst = 16 * (kIsDv ? kTurn : kTurn - kDv / 32);
    const u32 stage = place(place_of(kTurn));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = kFirst + 4 * j;
      const u32 to = stage + (j * 32 + worker.lane) * 16;
      if constexpr (kIsDv) {
        store_shared_16(to, rDv[i], rDv[i + 1], rDv[i + 2], rDv[i + 3]);
      } else {
        store_shared_16(to, rDk[i], rDk[i + 1], rDk[i + 2], rDk[i + 3]);
      }
    }
    fence_async_shared();
    __syncwarp();
    if (worker.lane == 0) {
      bulk_add((kIsDv ? dv_sum : dk_sum) + kFirst * 32, stage, 2048);
      bulk_commit();
    }
    add_sums<kTurn + 1>(dv_sum, dk_sum);
  }
}
/// Adds dK and dV of a part to the tile's sums.
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::add_part(bool any) {
  Worker<kConfig>& worker = scores.worker;
  const int tile =
      kept_tile<kConfig>(worker.args, worker.job, key_head<kConfig>(worker.args, worker.job));
  if constexpr (kConfig.sums.deterministic) {
    // In the order of the parts, which is that of the queue.
    const int before =
        worker.args.parts > 1 ? worker.job.part : worker.job.head % worker.args.sharers;
    if (worker.lane == 0) {
      signal_wait(worker.args.added + tile, static_cast<u32>(before * kConsumerWarps));
      fence_async();
    }
    __syncwarp();
  }
  if (any) {
    worker.sync_warpgroup();  // no warp's product reads V any more
    add_sums<0>(sums_at<kDv>(worker.args.dv_sum, tile), sums_at<kD>(worker.args.dk_sum, tile));
    if constexpr (kOfK > 0) worker.held_k = worker.shared.k_empty(worker.rK.slot ^ 1);
  }
  worker.unsignalled = worker.args.added + tile;
}
/// The sums of a tile to dK and dV.
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::run_keys() {
  Worker<kConfig>& worker = scores.worker;
  worker.signal_done();
  // What was staged of the job before has been read.
  if (worker.lane == 0) bulk_wait_read();
  worker.sync_consumers();
  store_tile();
}
// ---- dK and dV to memory

/// Where panel `index` of what a warpgroup stores is staged: where it writes dS itself, first in
/// the buffer that was used longer ago.
template <Config kConfig>
__forceinline__ u32 Consumer<kConfig>::staging(int index) const {
  constexpr int kPanels = kM / 64;  // of a buffer
  const int panel = (index + buffers.slot * kPanels) % (2 * kPanels);
  return scores.worker.shared.ds(0) + panel * (kBlockN * kPanelRowBytes) +
         scores.worker.warpgroup * kSlot;
}
/// Words of a row of a warp's fragments, 16 columns from 16 k on, to their panel.
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::stage_words(const u32 (&words)[4], int k, int first) const {
  const Worker<kConfig>& worker = scores.worker;
  const int row = worker.warp * 16 + worker.lane % 16;
  const int chunk = (k % 4 * 2 + worker.lane / 16) ^ (row % 8);
  store_matrix_x4(staging(first + k / 4) + row * kPanelRowBytes + chunk * 16, words);
}
template <Config kConfig>
template <int kColumns>
__forceinline__ void Consumer<kConfig>::stage(const float (&r)[kColumns / 2], float factor,
                                              int first) const {
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = pack<kElement>(r[8 * k + 2 * i] * factor, r[8 * k + 2 * i + 1] * factor);
    }
    stage_words(words, k, first);
  }
}
/// The same from the sums.
template <Config kConfig>
template <int kColumns>
__forceinline__ void Consumer<kConfig>::stage_sums(float* sums, float factor, int first) const {
  const Worker<kConfig>& worker = scores.worker;
  const float* from =
      sums_at<kColumns>(sums, kept_tile<kConfig>(worker.args, worker.job, worker.job.head)) +
      worker.lane * 4;
  Bytes16 fours[kColumns / 8];
#pragma unroll
  for (int i = 0; i < kColumns / 8; ++i) fours[i] = load_global_16(from + i * 128);
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
    u32 words[4];
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      const Bytes16& v = fours[2 * k + f];
      words[2 * f] = pack<kElement>(number(v.x) * factor, number(v.y) * factor);
      words[2 * f + 1] = pack<kElement>(number(v.z) * factor, number(v.w) * factor);
    }
    stage_words(words, k, first);
  }
}
template <Config kConfig>
__forceinline__ float Consumer<kConfig>::number(u32 bits) {
  return __int_as_float(static_cast<int>(bits));
}

/// What was staged goes to memory.
template <Config kConfig>
template <int kColumns>
__forceinline__ void Consumer<kConfig>::store_staged(const TensorMapBytes& map, int first) const {
  const Worker<kConfig>& worker = scores.worker;
  const int row = worker.job.block * kBlockN + worker.warpgroup * 64;
  for (int p = 0; p < SharedPlan::panels(kColumns); ++p) {
    store_keys<kConfig>(worker.args, map, staging(first + p), p * kPanelColumns, worker.job, row);
  }
  bulk_commit();
}
/// What dropout leaves of P is scaled with dV.
template <Config kConfig>
__forceinline__ float Consumer<kConfig>::values_factor() const {
  if constexpr (kConfig.options.dropout) return scores.options->dropout.scale;
  return 1.0F;
}
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::stage_dv() const {
  if constexpr (kConfig.sums.split) {
    stage_sums<kDv>(scores.worker.args.dv_sum, values_factor(), 0);
  } else {
    stage<kDv>(rDv, values_factor(), 0);
  }
}
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::stage_dk(int first) const {
  const Worker<kConfig>& worker = scores.worker;
  if constexpr (kConfig.sums.split) {
    stage_sums<kD>(worker.args.dk_sum, worker.args.scale, first);
  } else {
    stage<kD>(rDk, worker.args.scale, first);
  }
}
/// dK and dV of the tile, beside a warpgroup that may still be at work on the last dQ: by way of
/// this warpgroup's rows of dS, as soon as dQ lets go of them.
template <Config kConfig>
__forceinline__ void Consumer<kConfig>::store_tile() {
  Worker<kConfig>& worker = scores.worker;
  constexpr int kPanels = SharedPlan::panels(kD), kPanelsV = SharedPlan::panels(kDv);
  constexpr bool kAtOnce = kPanels + kPanelsV <= kM / 64;
  constexpr int kMost = kPanels > kPanelsV ? kPanels : kPanelsV;
  static_assert(kMost <= 2 * (kM / 64));
  if (worker.thread == 0) bulk_wait_read();
  if constexpr (kMost > kM / 64) {
    await_buffers();
  } else {
    await_buffer();
  }
  worker.sync_warpgroup();
  stage_dv();
  if constexpr (kAtOnce) stage_dk(kPanelsV);
  fence_async_shared();
  worker.sync_warpgroup();
  if (worker.thread == 0) {
    store_staged<kDv>(worker.args.dv, 0);
    if constexpr (kAtOnce) {
      store_staged<kD>(worker.args.dk, kPanelsV);
    } else {
      bulk_wait_read();
    }
  }
  if constexpr (!kAtOnce) {
    worker.sync_warpgroup();
    stage_dk(0);
    fence_async_shared();
    worker.sync_warpgroup();
    if (worker.thread == 0) store_staged<kD>(worker.args.dk, 0);
  }
}

}  // namespace tilewise::bwd_sm90
