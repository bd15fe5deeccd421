/// bwd_sm90: what the consumers do of the jobs that only pass rows through: preparation and
/// conversion. Thread t of all 256, warp w of all eight.
#pragma once

#include "cuda/kernels/bwd_sm90/shared.cuh"
#include "cuda/tile/hopper/tma.cuh"
#include "cuda/tile/hopper/wgmma.cuh"

namespace tilewise::bwd_sm90 {

using namespace tile;

/// Descriptor units from the first to the i-th 16 columns of panels of kRows rows.
template <int kRows>
__forceinline__ constexpr u32 panel_step(int i) {
  return i / 4 * (kRows * kPanelRowBytes / 16) + i % 4 * kStepColumns;
}

/// Two numbers to two planes: rounded, and what rounding took.
template <Element kElement>
__forceinline__ void pack_planes(u32& high, u32& low, float a, float b) {
  high = pack<kElement>(a, b);
  low = pack<kElement>(a - widen<kElement>(high & 0xffffU), b - widen_high<kElement>(high));
}

/// The chunk's sums of dQ become zero.
template <Config kConfig>
__forceinline__ void clear_sums(const Args& args, i64 row0, int t) {
  float* zero = args.dq_sum + row0 * kConfig.columns_dq() + t * 4;
#pragma unroll
  for (int n = 0; n < kConfig.shape.chunk_rows * kConfig.columns_dq() / 1024; ++n) {
    store_global_16(zero + n * 1024, {0, 0, 0, 0});
  }
}

/// rowsum(dO O) of block_m rows in shared memory; complete in the threads with t % (256 / block_m)
/// = 0, whose row is t / (256 / block_m).
template <Config kConfig>
__forceinline__ float row_products(u32 sO, u32 sdO, int t) {
  constexpr int kM = kConfig.shape.block_m, kThreads = 256 / kM;  // of a row
  constexpr int kSteps = 8 / kThreads;  // 16-byte chunks of a panel's row each
  const int row = t / kThreads;
  float sum = 0.0F;
#pragma unroll
  for (int p = 0; p < SharedPlan::panels(kConfig.head_dim_v); ++p) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      // Eight neighbouring threads meet all banks: rows begin at different steps.
      const int chunk = ((i ^ (row % kSteps)) * kThreads + t % kThreads) ^ (row % 8);
      const u32 at = p * kM * kPanelRowBytes + row * kPanelRowBytes + chunk * 16;
      const Bytes16 x = load_shared_16(sO + at), y = load_shared_16(sdO + at);
      const u32 a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sum += widen<kConfig.element>(a[e] & 0xffffU) * widen<kConfig.element>(b[e] & 0xffffU);
        sum += widen_high<kConfig.element>(a[e]) * widen_high<kConfig.element>(b[e]);
      }
    }
  }
#pragma unroll
  for (int step = kThreads / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
  return sum;
}

/// (B8) A piece of the sums of dQ, fragments of 16 rows x 8 columns (32 lanes of four floats), to
/// rows of panels of a chunk's rows at `to`. A warp takes two or four fragments of a band of 16
/// rows, or none.
template <Config kConfig>
__forceinline__ void convert_piece(u32 piece, u32 to, int index, float scale, int w, int lane) {
  constexpr int kBands = Piece<kConfig>::kBytes / (16 * 4 * kConfig.columns_dq());
  constexpr int kAtOnce = kConsumerWarps * 1024;  // bytes of a pair of each warp
  constexpr int kPairs = (Piece<kConfig>::kBytes + kAtOnce - 1) / kAtOnce;
  constexpr int kWarps = kConfig.columns_dq() / (kPairs * 16);  // of a band
  static_assert(kWarps * kPairs * 16 == kConfig.columns_dq());
  if (kWarps * kBands < kConsumerWarps && w >= kWarps * kBands) return;
  const int row = (index * kBands + w / kWarps) * 16 + lane % 16,
            column = w % kWarps * (kPairs * 16);
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    u32 words[4];
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      const Bytes16 v =
          load_shared_16(piece + w * (kPairs * 1024) + (2 * pair + f) * 512 + lane * 16);
      const auto value = [scale](u32 bits) {
        return scale * __int_as_float(static_cast<int>(bits));
      };
      words[2 * f] = pack<kConfig.element>(value(v.x), value(v.y));
      words[2 * f + 1] = pack<kConfig.element>(value(v.z), value(v.w));
    }
    const int first = column + 16 * pair;
    const int chunk = (first % 64 / 8 + lane / 16) ^ (row % 8);
    store_matrix_x4(to + first / 64 * (kConfig.shape.chunk_rows * kPanelRowBytes) +
                        row * kPanelRowBytes + chunk * 16,
                    words);
  }
}

}  // namespace tilewise::bwd_sm90
