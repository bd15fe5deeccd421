/// bwd_sm90: head dims above 128: what a warpgroup sums up for 64 rows, and its way to memory.
#pragma once

#include "cuda/kernels/bwd_sm90/worker.cuh"
#include "cuda/tile/hopper/tma.cuh"
#include "cuda/tile/hopper/wgmma.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// Accumulators of 64 rows x kColumns columns.
template <int kColumns>
struct LargeDimSums {
  float r[kColumns / 2];

  __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) r[i] = 0.0F;
  }
  __forceinline__ void pin_all() { pin(r); }
  /// += A B, A [64 x 64] in registers, B [64 x kColumns] in panels of 64 rows
  template <Element kElement>
  __forceinline__ void add_product(const u32 (&a)[16], u64 b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Wgmma<kElement, kColumns>::multiply_register(r, a[4 * i], a[4 * i + 1], a[4 * i + 2],
                                                   a[4 * i + 3], b + i * kStepRows);
    }
  }
};

/// A warp's 16 rows of panels of 64 rows as A fragments, four words for each 16 columns.
template <int kWords>
__forceinline__ void load_rows(u32 (&to)[kWords], u32 from, int warp, int lane) {
  const int row = warp * 16 + lane % 16;
#pragma unroll
  for (int i = 0; i < kWords / 4; ++i) {
    const int chunk = (i % 4 * 2 + lane / 16) ^ (row % 8);
    u32 r[4];
    load_matrix_x4(r, from + i / 4 * (64 * kPanelRowBytes) + row * kPanelRowBytes + chunk * 16);
#pragma unroll
    for (int e = 0; e < 4; ++e) to[4 * i + e] = r[e];
  }
}

/// 64 rows from accumulators to panels at `to`.
template <Element kElement, int kColumns>
__forceinline__ void stage_rows(const LargeDimSums<kColumns>& sums, float factor, u32 to, int warp,
                                int lane) {
  const int row = warp * 16 + lane % 16;
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = pack<kElement>(sums.r[8 * k + 2 * i] * factor, sums.r[8 * k + 2 * i + 1] * factor);
    }
    const int chunk = (k % 4 * 2 + lane / 16) ^ (row % 8);
    store_matrix_x4(to + k / 4 * (64 * kPanelRowBytes) + row * kPanelRowBytes + chunk * 16, words);
  }
}

/// The sums of a tile to memory by way of `place`, which is then empty: each warp says so.
template <Config kConfig, int kColumns>
__forceinline__ void leave_tile(const Worker<kConfig>& worker, const LargeDimSums<kColumns>& sums,
                                float factor, u32 place, const TensorMapBytes& map, u32 empty) {
  // One warp's wait does not prove that the others' products have read what lay in `place`.
  worker.sync_warpgroup();
  stage_rows<kConfig.element>(sums, factor, place, worker.warp, worker.lane);
  fence_async_shared();
  worker.sync_warpgroup();
  if (worker.thread == 0) {
    for (int p = 0; p < SharedPlan::panels(kColumns); ++p) {
      store_keys<kConfig>(worker.args, map, place + p * Worker<kConfig>::kSlot, p * kPanelColumns,
                          worker.job, worker.job.block * kConfig.shape.block_n);
    }
    bulk_commit();
    bulk_wait_read();
  }
  worker.release(empty);
}

}  // namespace tilewise::bwd_sm90
