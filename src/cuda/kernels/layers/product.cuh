/// layer_steps: a Linear with what follows it, float32, on the tensor cores (sm_80 class).
///
/// y = f(x w^T + bias) + residual. A factor is the sum of two tf32 numbers, and three of their four
/// products count: the fourth lies below float32's accuracy. The sum of a slice of k begins at 0
/// and is added to the total as floats are, because a product on the tensor cores cuts its sum off
/// instead of rounding it.
#pragma once

#include "cuda/kernels/layers/steps.cuh"
#include "cuda/tile/mma_tf32.cuh"

namespace tilewise::layer_steps {

inline constexpr int kProductStride = kProductSlice + 4;  ///< floats from row to row: no conflicts

struct alignas(16) Floats4 {
  float x, y, z, w;
};

/// Two tf32 numbers whose sum is x to 22 bits.
__forceinline__ void split(float x, tile::u32& high, tile::u32& low) {
  constexpr tile::u32 kHalf = 0x1000, kKept = 0xffffe000;
  high = (static_cast<tile::u32>(__float_as_int(x)) + kHalf) & kKept;
  const float rest = x - __int_as_float(static_cast<int>(high));
  low = static_cast<tile::u32>(__float_as_int(rest)) + kHalf;
}

/// Rows of a factor on their way from global to shared memory: each thread brings four floats of
/// some rows of a slice.
template <int kRows>
struct ProductTile {
  static constexpr int kAcross = kProductSlice / 4;
  static constexpr int kAtOnce = kThreads / kAcross;
  Floats4 held[kRows / kAtOnce];

  __forceinline__ void load(const float* from, i64 first, i64 rows, int depth, int k) {
    const int column = k + static_cast<int>(threadIdx.x) % kAcross * 4;
#pragma unroll
    for (int n = 0; n < kRows / kAtOnce; ++n) {
      const i64 row = first + n * kAtOnce + static_cast<int>(threadIdx.x) / kAcross;
      const bool inside = row < rows && column < depth;
      held[n] = inside ? *reinterpret_cast<const Floats4*>(from + row * depth + column)
                       : Floats4{0.0F, 0.0F, 0.0F, 0.0F};
    }
  }
  __forceinline__ void store(float (&to)[kRows][kProductStride]) const {
    const int column = static_cast<int>(threadIdx.x) % kAcross * 4;
#pragma unroll
    for (int n = 0; n < kRows / kAtOnce; ++n) {
      const int row = n * kAtOnce + static_cast<int>(threadIdx.x) / kAcross;
      *reinterpret_cast<Floats4*>(&to[row][column]) = held[n];
    }
  }
};

/// One block: kRows x kProductColumns elements of y. A warp takes 16 rows and kWide columns.
template <int kRows>
__forceinline__ void product(const ProductArgs& a) {
  using tile::u32;
  constexpr int kRowWarps = kRows / 16, kColumnWarps = kThreads / 32 / kRowWarps;
  constexpr int kWide = kProductColumns / kColumnWarps, kTiles = kWide / 8;
  alignas(16) __shared__ float left[2][kRows][kProductStride];
  alignas(16) __shared__ float right[2][kProductColumns][kProductStride];
  const int groups = (a.out + kProductColumns - 1) / kProductColumns;
  const i64 first_row = static_cast<i64>(blockIdx.x) / groups * kRows;
  const int first_column = static_cast<int>(blockIdx.x) % groups * kProductColumns;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = warp % kRowWarps * 16 + lane / 4, column = warp / kRowWarps * kWide;
  const int within = lane % 4;

  tile::Acc total[kTiles] = {};
  ProductTile<kRows> x;
  ProductTile<kProductColumns> w;
  x.load(a.x, first_row, a.rows, a.in, 0);
  w.load(a.w, first_column, a.out, a.in, 0);
  for (int k = 0, slot = 0; k < a.in; k += kProductSlice, slot ^= 1) {
    // A warp that is one slice behind reads the other slot.
    x.store(left[slot]);
    w.store(right[slot]);
    __syncthreads();  // the slice is there
    if (k + kProductSlice < a.in) {
      x.load(a.x, first_row, a.rows, a.in, k + kProductSlice);
      w.load(a.w, first_column, a.out, a.in, k + kProductSlice);
    }
    tile::Acc sum[kTiles] = {};
#pragma unroll
    for (int step = 0; step < kProductSlice; step += 8) {
      u32 high[4], low[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        split(left[slot][row + e % 2 * 8][step + within + e / 2 * 4], high[e], low[e]);
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float(&line)[kProductStride] = right[slot][column + 8 * n + lane / 4];
        u32 w_high[2], w_low[2];
        split(line[step + within], w_high[0], w_low[0]);
        split(line[step + within + 4], w_high[1], w_low[1]);
        tile::mma_tf32(sum[n], low, w_high[0], w_high[1]);
        tile::mma_tf32(sum[n], high, w_low[0], w_low[1]);
        tile::mma_tf32(sum[n], high, w_high[0], w_high[1]);
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) total[n][e] += sum[n][e];
    }
  }

#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const i64 i = first_row + row + e / 2 * 8;
      const int j = first_column + column + 8 * n + 2 * within + e % 2;
      if (i >= a.rows || j >= a.out) continue;
      const i64 at = i * a.out + j;
      const float z = total[n][e] + (a.bias == nullptr ? 0.0F : a.bias[j]);
      if (a.z != nullptr) a.z[at] = z;
      a.y[at] = activated(a.f, z) + (a.residual == nullptr ? 0.0F : a.residual[at]);
    }
  }
}

template <Config>
__forceinline__ void product_64(const ProductArgs& a) {
  product<64>(a);
}
template <Config>
__forceinline__ void product_32(const ProductArgs& a) {
  product<32>(a);
}

}  // namespace tilewise::layer_steps
