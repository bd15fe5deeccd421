/// bwd_sm90: head dims above 128: what a warpgroup sums up for 64 keys, and its way to memory.
#pragma once

#include "cuda/kernels/bwd_sm90_shared.cuh"
#include "cuda/tile/tma.cuh"
#include "cuda/tile/wgmma.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// dV or dK of 64 keys: accumulators of `columns` columns. An instruction takes no more registers
/// than the launch gives a thread (128), so 256 columns are two halves.
constexpr int wide_parts(int columns) { return columns > 192 ? 2 : 1; }
template <int kColumns>
struct WideSums {
  static constexpr int kParts = wide_parts(kColumns), kN = kColumns / kParts;
  float r[kParts][kN / 2];

  __forceinline__ void clear() {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) r[p][i] = 0.0F;
    }
  }
  __forceinline__ void pin_all() {
#pragma unroll
    for (int p = 0; p < kParts; ++p) pin(r[p]);
  }
  /// += A B, A [64 x 64] in registers, B [64 x kColumns] in panels of 64 rows
  template <Element kElement>
  __forceinline__ void add_product(const u32 (&a)[16], u64 b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        Wgmma<kElement, kN>::multiply_register(r[p], a[4 * i], a[4 * i + 1], a[4 * i + 2],
                                               a[4 * i + 3],
                                               b + p * (kN * kPanelRowBytes / 16) + i * kStepRows);
      }
    }
  }
};

/// Rows of 64 keys from accumulators to panels at `to`.
template <Element kElement, int kColumns>
__forceinline__ void stage_rows(const WideSums<kColumns>& sums, float factor, u32 to, int warp,
                                int lane) {
  constexpr int kN = WideSums<kColumns>::kN;
  const int row = warp * 16 + lane % 16;
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
    const float* r = sums.r[k / (kN / 16)] + k % (kN / 16) * 8;
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = pack<kElement>(r[2 * i] * factor, r[2 * i + 1] * factor);
    }
    const int chunk = (k % 4 * 2 + lane / 16) ^ (row % 8);
    store_matrix_x4(to + k / 4 * (64 * kPanelRowBytes) + row * kPanelRowBytes + chunk * 16, words);
  }
}

/// The sums of a tile to memory by way of `place`, which is then empty.
template <class Role, int kColumns>
__forceinline__ void leave_tile(const Role& role, const WideSums<kColumns>& sums, float factor,
                                u32 place, const TensorMapBytes& map, u32 empty) {
  stage_rows<Role::kElement>(sums, factor, place, role.warp, role.lane);
  fence_async_shared();
  role.sync_warpgroup();
  if (role.thread == 0) {
    for (int p = 0; p < SharedPlan::panels(kColumns); ++p) {
      tma_store(&map, place + p * Role::kSlot, p * kPanelColumns, role.job.head,
                role.job.block * Role::kBlockN, role.job.batch);
    }
    bulk_commit();
    bulk_wait_read();
    mbarrier_arrive(empty);
  }
}

}  // namespace tilewise::bwd_sm90
