/// A tile of 16-bit rows in shared memory, and how fragments are read from it.
///
/// 16-byte chunk c of row r lies at chunk c ^ swizzle(r) of the row: the eight rows that one
/// ldmatrix phase touches fall into different banks for every row length in use (16, 32, 64, 96,
/// 128, 192, 256, 384, 512 elements). With two planes the tile of the low parts follows that of the
/// high parts.
#pragma once

#include "cuda/tile/mma.cuh"

namespace tilewise::tile {

/// `kColsApart`: columns between the planes of a row in memory, more than kCols where it has more.
template <int kRows, int kCols, int kPlanes = 1, int kColsApart = kCols>
struct SharedTile {
  static constexpr int kChunks = kCols / 8;
  static constexpr int kPitch = kCols * 2;
  static constexpr int kPlaneBytes = kRows * kPitch;
  static constexpr int kBytes = kPlanes * kPlaneBytes;
  static_assert(kCols % 16 == 0);

  u32 base;

  static __forceinline__ int swizzle(int row) {
    if constexpr (kChunks % 8 == 0) return row & 7;
    if constexpr (kChunks % 4 == 0) return (row >> 1) & 3;
    return (row >> 2) & 1;
  }
  __forceinline__ u32 address(int row, int chunk) const {
    return base + static_cast<u32>(row * kPitch + ((chunk ^ swizzle(row)) << 4));
  }

  /// Address of chunk `chunk` + `lane_chunk` (one of which is even, the other 0 or 1) of row `row`
  /// + `lane_row`, where `row` is a multiple of 8 and, with `chunk`, known to the compiler: one
  /// exclusive-or and an immediate offset on an address that depends on the lane only.
  __forceinline__ u32 lane_address(int row, int lane_row, int chunk, int lane_chunk) const {
    constexpr int kMask = kChunks % 8 == 0 ? 7 : kChunks % 4 == 0 ? 3 : 1;
    const u32 at =
        base + static_cast<u32>(lane_row * kPitch + ((lane_chunk ^ swizzle(lane_row)) << 4));
    return (at ^ static_cast<u32>((chunk & kMask) << 4)) +
           static_cast<u32>(row * kPitch + ((chunk & ~kMask) << 4));
  }

  /// A of rows row .. row+15, columns 16k .. 16k+15.
  __forceinline__ void load_a(FragmentA<kPlanes>& a, int row, int k, int lane) const {
    const u32 at = lane_address(row, lane & 15, 2 * k, lane >> 4);
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) load_matrix_x4(a.r[p], at + p * kPlaneBytes);
  }
  /// A = transpose of rows 16k .. 16k+15 (the contracted index), columns col .. col+15.
  __forceinline__ void load_a_trans(FragmentA<kPlanes>& a, int k, int col, int lane) const {
    const u32 at = lane_address(16 * k, (lane & 7) + ((lane >> 4) << 3), col / 8, (lane >> 3) & 1);
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) load_matrix_trans_x4(a.r[p], at + p * kPlaneBytes);
  }
  /// B = transpose of rows row .. row+15 (n), columns 16k .. 16k+15.
  __forceinline__ void load_b(FragmentB<kPlanes>& b, int row, int k, int lane) const {
    const u32 at = lane_address(row, (lane & 7) + ((lane >> 4) << 3), 2 * k, (lane >> 3) & 1);
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) load_matrix_x4(b.r[p], at + p * kPlaneBytes);
  }
  /// B of rows 16k .. 16k+15 (the contracted index), columns col .. col+15 (n).
  __forceinline__ void load_b_trans(FragmentB<kPlanes>& b, int k, int col, int lane) const {
    const u32 at = lane_address(16 * k, (lane & 7) + ((lane >> 3) & 1) * 8, col / 8, lane >> 4);
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) load_matrix_trans_x4(b.r[p], at + p * kPlaneBytes);
  }

  /// Starts copying `rows` rows of `global` (the high plane in columns 0 .. cols-1, the low one
  /// kColsApart further on); what lies beyond rows or cols becomes zero. The caller commits.
  template <int kThreads>
  __forceinline__ void load_async(const unsigned short* global, i64 stride, int rows, int cols,
                                  int thread) const {
    constexpr int kTotal = kRows * kChunks;
    constexpr int kSteps = (kTotal + kThreads - 1) / kThreads;
    if constexpr (kThreads % kChunks == 0 && (kThreads / kChunks) % 8 == 0) {
      // A thread keeps its chunk and moves down: one pointer and one shared address.
      constexpr int kRowStep = kThreads / kChunks;
      const int chunk = thread % kChunks, row = thread / kChunks;
      const int cut = chunk * 8 < cols ? rows - row : 0;
      const unsigned short* from = global + row * stride + chunk * 8;
      const u32 to = address(row, chunk);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (kRows % kRowStep != 0 && row + step * kRowStep >= kRows) break;
        copy_chunk(to + step * kRowStep * kPitch, from, step * kRowStep < cut ? 16 : 0);
        from += kRowStep * stride;
      }
    } else {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int index = thread + step * kThreads;
        if (kTotal % kThreads != 0 && index >= kTotal) break;
        const int row = index / kChunks, chunk = index % kChunks;
        copy_chunk(address(row, chunk), global + row * stride + chunk * 8,
                   row < rows && chunk * 8 < cols ? 16 : 0);
      }
    }
  }
  __forceinline__ void copy_chunk(u32 to, const unsigned short* from, int bytes) const {
#pragma unroll
    for (int p = 0; p < kPlanes; ++p)
      copy_async_16(to + p * kPlaneBytes, from + p * kColsApart, bytes);
  }
};

/// A warp stores kRows rows of a tile, from tile row `first`, as rows row .. of `global` (16-bit
/// elements), as far as rows < row_end and columns < cols; 16 bytes a lane where `vectors` says
/// that rows allow it.
template <int kRows, int kCols, int kTileRows>
__forceinline__ void store_rows(const SharedTile<kTileRows, kCols>& tile, int first,
                                unsigned short* global, const View4& view, bool vectors, int row,
                                int row_end, int cols, int lane) {
  constexpr int kChunks = kCols / 8;
#pragma unroll
  for (int index = lane; index < kRows * kChunks; index += 32) {
    const int r = index / kChunks, chunk = index % kChunks;
    if (row + r >= row_end || chunk * 8 >= cols) continue;
    const Bytes16 v = load_shared_16(tile.address(first + r, chunk));
    unsigned short* to = global + (row + r) * view.stride_s + chunk * 8 * view.stride_d;
    if (vectors && chunk * 8 + 8 <= cols) {
      store_global_16(to, v);
    } else {
      const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (chunk * 8 + e < cols) {
          to[e * view.stride_d] = static_cast<unsigned short>(words[e / 2] >> (16 * (e % 2)));
        }
      }
    }
  }
}

/// Between the steps of a product over wide rows: keeps the compiler from loading the fragments of
/// so many steps ahead that accumulators spill. NOTE: it is the compiler's scheduling that it
/// stops; the warp is converged anyway.
template <int kWidth>
__forceinline__ void limit_overlap() {
  if constexpr (kWidth >= 192) __syncwarp();
}

/// The high plane of a tile.
template <int kRows, int kCols, int kPlanes, int kApart>
__forceinline__ SharedTile<kRows, kCols> high_plane(
    const SharedTile<kRows, kCols, kPlanes, kApart>& tile) {
  return {tile.base};
}

/// sum += A B^T: A is rows a_row .. of tile `a`, B is rows b_row .. of tile `b`, both along their
/// columns. With two planes the products with a low plane come first, while the sum is small:
/// tensor cores truncate when they add.
template <Element kElement, int kM, int kN, int kRowsA, int kRowsB, int kCols, int kPlanes>
__forceinline__ void product_rows(Acc (&sum)[kM][kN], const SharedTile<kRowsA, kCols, kPlanes>& a,
                                  int a_row, const SharedTile<kRowsB, kCols, kPlanes>& b, int b_row,
                                  int lane) {
#pragma unroll
  for (int k = 0; k < kCols / 16; ++k) {
    FragmentA<kPlanes> rA[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) a.load_a(rA[m], a_row + 16 * m, k, lane);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      FragmentB<kPlanes> rB;
      b.load_b(rB, b_row + 8 * n, k, lane);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if constexpr (kPlanes == 2) {
            mma_low<kElement>(sum[m][n + half], rA[m], rB, half);
          } else {
            mma_high<kElement>(sum[m][n + half], rA[m], rB, half);
          }
        }
      }
    }
    limit_overlap<kCols * kPlanes>();
  }
  if constexpr (kPlanes == 2) {
    product_rows<kElement>(sum, high_plane(a), a_row, high_plane(b), b_row, lane);
  }
}

/// sum += A B: A in registers, B is rows 16 * b_k .. of tile `b`, columns b_col ... With `kFresh`
/// the products start from zero, those with a low plane first, and are added as factor * product in
/// float32.
template <Element kElement, bool kFresh, int kM, int kN, int kK, int kRows, int kCols, int kPlanes,
          int kApart, int kPlanesA>
__forceinline__ void product_register(Acc (&sum)[kM][kN], const FragmentA<kPlanesA> (&a)[kM][kK],
                                      const SharedTile<kRows, kCols, kPlanes, kApart>& b, int b_k,
                                      int b_col, float factor, int lane) {
  if constexpr (kFresh) {
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      Acc fresh[kM][2] = {};
      if constexpr (kPlanes == 2) {
#pragma unroll
        for (int k = 0; k < kK; ++k) {
          FragmentB<kPlanes> rB;
          b.load_b_trans(rB, b_k + k, b_col + 8 * n, lane);
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            mma_low<kElement>(fresh[m][0], a[m][k], rB, 0);
            mma_low<kElement>(fresh[m][1], a[m][k], rB, 1);
          }
        }
      }
#pragma unroll
      for (int k = 0; k < kK; ++k) {
        FragmentB<1> rB;
        high_plane(b).load_b_trans(rB, b_k + k, b_col + 8 * n, lane);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma<kElement>(fresh[m][0], a[m][k].r[0], rB.r[0][0], rB.r[0][1]);
          mma<kElement>(fresh[m][1], a[m][k].r[0], rB.r[0][2], rB.r[0][3]);
        }
      }
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sum[m][n][e] = __fmaf_rn(fresh[m][0][e], factor, sum[m][n][e]);
          sum[m][n + 1][e] = __fmaf_rn(fresh[m][1][e], factor, sum[m][n + 1][e]);
        }
      }
      // Accumulators of kM rows wait meanwhile; one plane needs fewer fragments.
      limit_overlap<kCols * kPlanes*(1 + (kPlanes - 1) * (kM - 1))>();
    }
  } else {
#pragma unroll
    for (int k = 0; k < kK; ++k) {
#pragma unroll
      for (int n = 0; n < kN; n += 2) {
        FragmentB<kPlanes> rB;
        b.load_b_trans(rB, b_k + k, b_col + 8 * n, lane);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int p = kPlanesA - 1; p >= 0; --p) {
            mma<kElement>(sum[m][n], a[m][k].r[p], rB.r[0][0], rB.r[0][1]);
            mma<kElement>(sum[m][n + 1], a[m][k].r[p], rB.r[0][2], rB.r[0][3]);
          }
        }
      }
    }
  }
}

/// Rows of a fragment to memory as floats, times `factor`.
template <int kM, int kN>
__forceinline__ void store_float_rows(const Acc (&x)[kM][kN], float factor, float* global,
                                      const View4& view, bool vectors, int row, int row_end,
                                      int col, int cols, int lane) {
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    const int i = row + 16 * (r / 2) + lane / 4 + 8 * (r % 2);
    if (i >= row_end) continue;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const int d = col + 8 * n + 2 * (lane % 4);
      float* to = global + i * view.stride_s + d * view.stride_d;
      const float left = factor * x[r / 2][n][2 * (r % 2)];
      const float right = factor * x[r / 2][n][2 * (r % 2) + 1];
      if (vectors && d + 1 < cols) {
        store_global_8(to, left, right);
      } else {
        if (d < cols) to[0] = left;
        if (d + 1 < cols) to[view.stride_d] = right;
      }
    }
  }
}

/// A fragment, times `factor`, to rows `row` .. and columns `col` .. of a tile as 16-bit elements,
/// in its planes.
template <Element kElement, int kM, int kN, int kRows, int kCols, int kPlanes>
__forceinline__ void stage_rows(const Acc (&x)[kM][kN], float factor,
                                const SharedTile<kRows, kCols, kPlanes>& tile, int row, int col,
                                int lane) {
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const u32 at = tile.address(row + 16 * (r / 2) + lane / 4 + 8 * (r % 2), col / 8 + n) +
                     static_cast<u32>(4 * (lane % 4));
      const float a = factor * x[r / 2][n][2 * (r % 2)];
      const float b = factor * x[r / 2][n][2 * (r % 2) + 1];
      const u32 high = pack<kElement>(a, b);
      store_shared_4(at, high);
      if constexpr (kPlanes == 2) {
        store_shared_4(at + tile.kPlaneBytes, pack<kElement>(a - widen<kElement>(high & 0xffffU),
                                                             b - widen_high<kElement>(high)));
      }
    }
  }
}

/// Adds a fragment to sums in memory that lie in fragment order: 16 rows x 8 columns are 32 lanes
/// of four floats, the tiles of a 16-row band side by side. `row` is a multiple of 16, `pitch` the
/// columns of a row.
template <int kM, int kN>
__forceinline__ void add_fragments(const Acc (&x)[kM][kN], float* sums, int row, int col, int pitch,
                                   int lane) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      add_global_x4(sums + static_cast<i64>(row + 16 * m) * pitch + (col + 8 * n) * 16 + lane * 4,
                    x[m][n]);
    }
  }
}

/// The same order, stored.
template <int kM, int kN>
__forceinline__ void store_fragments(const Acc (&x)[kM][kN], float* to, int row, int col, int pitch,
                                     int lane) {
  const auto word = [](float f) { return static_cast<u32>(__float_as_int(f)); };
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const Acc& f = x[m][n];
      store_global_16(to + static_cast<i64>(row + 16 * m) * pitch + (col + 8 * n) * 16 + lane * 4,
                      {word(f[0]), word(f[1]), word(f[2]), word(f[3])});
    }
  }
}

}  // namespace tilewise::tile
