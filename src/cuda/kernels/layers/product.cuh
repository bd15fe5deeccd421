/// layer_steps: a Linear with what follows it, float32, on the tensor cores (sm_80 class).
///
/// y = f(x w^T + bias) + residual. A slice of a row is a power of two and two fp16 planes:
/// x = 2^e (high + low), to 2^-24 of the slice's largest element. Three of the four products of
/// planes count: the fourth lies below float32's accuracy. The sum of a slice begins at 0, and its
/// two powers of two bring it to the total, which is added up as floats are, because a product on
/// the tensor cores cuts its sum off instead of rounding it.
#pragma once

#include "cuda/kernels/layers/steps.cuh"
#include "cuda/tile/shared_tile.cuh"

namespace tilewise::layer_steps {

using tile::u32;

/// A power of two for elements of magnitude up to `top`, and its inverse: the largest element lands
/// in [2^14, 2^15). Elements that are not finite stay so.
struct Power {
  float scale, inverse;
  explicit __forceinline__ Power(float top) {
    constexpr int kTarget = 14, kBias = 127, kMantissa = 23;
    const int e = max(__float_as_int(top) >> kMantissa, kTarget + 1);
    scale = __int_as_float((e - kTarget) << kMantissa);
    inverse = __int_as_float((2 * kBias + kTarget - e) << kMantissa);
  }
};

/// Rows of a factor in shared memory: a slice of k as planes, and the rows' powers of two.
template <int kRows>
struct ProductTile {
  using Planes = tile::SharedTile<kRows, kProductSlice, 2>;
  static constexpr int kBytes = product_bytes(kRows);
  static_assert(kBytes == Planes::kBytes + kRows * 4);
  Planes planes;

  explicit __forceinline__ ProductTile(u32 base) : planes{base} {}
  __forceinline__ u32 power(int row) const {
    return planes.base + static_cast<u32>(Planes::kBytes + row * 4);
  }
};

/// Rows of a factor on their way from global to shared memory: a thread brings eight neighbours of
/// some rows.
template <int kRows>
struct ProductRows {
  static constexpr int kAcross = kProductSlice / 8, kAtOnce = kThreads / kAcross;
  static constexpr int kHeld = kRows / kAtOnce;
  tile::Bytes16 held[kHeld][2];

  static __forceinline__ int chunk() { return static_cast<int>(threadIdx.x) % kAcross; }
  static __forceinline__ int row(int n) {
    return n * kAtOnce + static_cast<int>(threadIdx.x) / kAcross;
  }

  /// The slice from column k on. Rows beyond the end are the last one again: nobody stores their
  /// results.
  __forceinline__ void load(const float* from, i64 first, i64 rows, int depth, int k) {
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      const float* line = from + min(first + row(n), rows - 1) * depth;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        held[n][half] = tile::load_global_16(line + min(k + chunk() * 8 + half * 4, depth - 4));
      }
    }
  }

  /// The slice that begins at column k, zero beyond the end.
  __forceinline__ void store(const ProductTile<kRows>& to, int depth, int k) const {
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      float x[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const tile::Bytes16& four = held[n][e / 4];
        const u32 words[4] = {four.x, four.y, four.z, four.w};
        const bool inside = k + chunk() * 8 + e / 4 * 4 < depth;
        x[e] = inside ? __int_as_float(static_cast<int>(words[e % 4])) : 0.0F;
      }
      float top = 0.0F;
#pragma unroll
      for (int e = 0; e < 8; ++e) top = fmaxf(top, fabsf(x[e]));
#pragma unroll
      for (int lane = kAcross / 2; lane > 0; lane /= 2) {
        top = fmaxf(top, __shfl_xor_sync(~0U, top, lane));
      }
      const Power power(top);
      if (chunk() == 0) {
        tile::store_shared_4(to.power(row(n)), static_cast<u32>(__float_as_int(power.scale)));
      }
      split(x, power.inverse, to.planes.address(row(n), chunk()));
    }
  }

 private:
  static __forceinline__ void split(const float (&x)[8], float inverse, u32 at) {
    using tile::Element;
    float high[4], low[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float a = x[2 * e] * inverse, b = x[2 * e + 1] * inverse;
      const u32 both = tile::pack<Element::fp16>(a, b);
      high[e] = __uint_as_float(both);
      low[e] =
          __uint_as_float(tile::pack<Element::fp16>(a - tile::widen<Element::fp16>(both & 0xffffU),
                                                    b - tile::widen_high<Element::fp16>(both)));
    }
    tile::store_shared_16(at, high[0], high[1], high[2], high[3]);
    tile::store_shared_16(at + ProductTile<kRows>::Planes::kPlaneBytes, low[0], low[1], low[2],
                          low[3]);
  }
};

/// Elements of y that a warp computes: 16 rows and kWide columns of a block of kRows rows.
template <int kRows>
struct ProductWarp {
  static constexpr int kRowWarps = kRows / 16, kColumnWarps = kThreads / 32 / kRowWarps;
  static constexpr int kWide = kProductColumns / kColumnWarps, kTiles = kWide / 8;
  tile::Acc total[kTiles] = {};
  int lane = static_cast<int>(threadIdx.x) % 32;
  int row = static_cast<int>(threadIdx.x) / 32 % kRowWarps * 16;
  int column = static_cast<int>(threadIdx.x) / 32 / kRowWarps * kWide;

  __forceinline__ void multiply(const ProductTile<kRows>& x,
                                const ProductTile<kProductColumns>& w) {
    using tile::Element;
    tile::Acc sum[kTiles] = {}, small[kTiles] = {};
#pragma unroll
    for (int k = 0; k < kProductSlice / 16; ++k) {
      tile::FragmentA<2> a;
      tile::FragmentB<2> b[kTiles / 2];
      x.planes.load_a(a, row, k, lane);
#pragma unroll
      for (int n = 0; n < kTiles / 2; ++n) w.planes.load_b(b[n], column + 16 * n, k, lane);
        // Neighbours in this order do not wait for one another.
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        tile::mma<Element::fp16>(small[n], a.r[1], b[n / 2].r[0][n % 2 * 2],
                                 b[n / 2].r[0][n % 2 * 2 + 1]);
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) tile::mma_high<Element::fp16>(sum[n], a, b[n / 2], n % 2);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        tile::mma<Element::fp16>(small[n], a.r[0], b[n / 2].r[1][n % 2 * 2],
                                 b[n / 2].r[1][n % 2 * 2 + 1]);
      }
    }
    float of_row[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      of_row[half] = tile::load_shared_f32(x.power(row + lane / 4 + 8 * half));
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float of_column =
            tile::load_shared_f32(w.power(column + 8 * n + lane % 4 * 2 + e % 2));
        total[n][e] += (sum[n][e] + small[n][e]) * (of_row[e / 2] * of_column);
      }
    }
  }

  /// What follows the product. Everything is asked for before anything is used: a load takes as
  /// long as all the rest of it.
  __forceinline__ void finish(const ProductArgs& a, i64 first_row, int first_column) {
    const i64 i = first_row + row + lane / 4;
    const int j = first_column + column + lane % 4 * 2;
    float bias[kTiles][2] = {};
    tile::Acc residual[kTiles] = {};
    if (a.bias != nullptr) {
      each([&](int n, int e) {
        if (j + 8 * n + e % 2 < a.out) bias[n][e % 2] = a.bias[j + 8 * n + e % 2];
      });
    }
    if (a.residual != nullptr) {
      each([&](int n, int e) {
        if (i + e / 2 * 8 >= a.rows || j + 8 * n + e % 2 >= a.out) return;
        residual[n][e] = a.residual[(i + e / 2 * 8) * a.out + j + 8 * n + e % 2];
      });
    }
    each([&](int n, int e) { total[n][e] += bias[n][e % 2]; });
    if (a.z != nullptr) store(a, a.z, i, j);
    if (a.f == Activation::gelu) {
      each([&](int n, int e) { total[n][e] = activated(Activation::gelu, total[n][e]); });
    } else if (a.f != Activation::none) {
      each([&](int n, int e) { total[n][e] = activated(a.f, total[n][e]); });
    }
    each([&](int n, int e) { total[n][e] += residual[n][e]; });
    store(a, a.y, i, j);
  }

 private:
  template <class Body>
  static __forceinline__ void each(const Body& body) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) body(n, e);
    }
  }

  __forceinline__ void store(const ProductArgs& a, float* to, i64 i, int j) const {
    if (a.out % 2 == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* line = to + (i + 8 * half) * a.out + j;
        if (i + 8 * half >= a.rows) continue;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          if (j + 8 * n < a.out)
            tile::store_global_8(line + 8 * n, total[n][2 * half], total[n][2 * half + 1]);
        }
      }
      return;
    }
    each([&](int n, int e) {
      if (i + e / 2 * 8 >= a.rows || j + 8 * n + e % 2 >= a.out) return;
      to[(i + e / 2 * 8) * a.out + j + 8 * n + e % 2] = total[n][e];
    });
  }
};

/// One block: kRows x kProductColumns elements of y. `kAhead` slices are on their way.
template <int kRows, int kAhead>
__forceinline__ void product(const ProductArgs& a) {
  extern __shared__ __align__(1024) unsigned char product_memory[];
  using X = ProductTile<kRows>;
  using W = ProductTile<kProductColumns>;
  const int groups = (a.out + kProductColumns - 1) / kProductColumns;
  const i64 first_row = static_cast<i64>(blockIdx.x) / groups * kRows;
  const int first_column = static_cast<int>(blockIdx.x) % groups * kProductColumns;
  ProductRows<kRows> x[kAhead];
  ProductRows<kProductColumns> w[kAhead];
  const auto load = [&](int n, int k) {
    if (k >= a.in) return;
    x[n].load(a.x, first_row, a.rows, a.in, k);
    w[n].load(a.w, first_column, a.out, a.in, k);
  };
#pragma unroll
  for (int n = 0; n < kAhead; ++n) load(n, n * kProductSlice);
  ProductWarp<kRows> warp;
  u32 slot = tile::shared_address(product_memory), other = slot + X::kBytes + W::kBytes;
  for (int from = 0; from < a.in; from += kAhead * kProductSlice) {
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      const int k = from + n * kProductSlice;
      if (k >= a.in) break;
      const X left(slot);
      const W right(slot + X::kBytes);
      // A warp that is one slice behind reads the other slot.
      x[n].store(left, a.in, k);
      w[n].store(right, a.in, k);
      __syncthreads();  // the slice is there
      load(n, k + kAhead * kProductSlice);
      warp.multiply(left, right);
      const u32 next = other;
      other = slot;
      slot = next;
    }
  }
  warp.finish(a, first_row, first_column);
}

template <Config>
__forceinline__ void product_64(const ProductArgs& a) {
  product<64, 1>(a);
}
template <Config>
__forceinline__ void product_32(const ProductArgs& a) {
  product<32, 2>(a);
}

}  // namespace tilewise::layer_steps
