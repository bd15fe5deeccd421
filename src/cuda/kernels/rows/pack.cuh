/// pack_rows: brings operands into the form that the sm_80-class kernels read: 16-bit rows side by
/// side, padded with zeros to a multiple of 16 columns.
///
/// A float32 operand becomes `planes` fp16 planes with one power of two per kScaleRows rows:
///   x = scale * (high + low + e), high = fp16(x / scale), low = fp16(x / scale - high), |e| <=
///   2^-24 |x| / scale
/// as long as |x| is within 2^17 of the block's largest value, and below 2^-40 of that value
/// anyway: float32's own 24 bits. The power of two is exact, so nothing is lost by it. 16-bit
/// operands with odd strides are only copied.
///
/// One block packs kScaleRows rows of one head of one operand.
#pragma once

#include "cuda/kernels/rows/pack_args.h"
#include "cuda/tile/math.cuh"
#include "cuda/tile/sequences.cuh"

namespace tilewise::pack_rows {

using namespace tile;

/// Eight neighbours of a row, zero beyond its end.
__forceinline__ void read_floats(float (&x)[8], const float* row, i64 stride, int col, int cols,
                                 bool vectors) {
  if (vectors && col + 8 <= cols) {
    const Bytes16 a = load_global_16(row + col), b = load_global_16(row + col + 4);
    const u32 words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] = __int_as_float(static_cast<int>(words[e]));
    return;
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) x[e] = col + e < cols ? row[(col + e) * stride] : 0.0F;
}

/// Largest magnitude that a finite value of the chunk has, or `top`.
__forceinline__ float larger(float top, const float (&x)[8]) {
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float a = fabsf(x[e]);
    top = a < infinity() ? fmaxf(top, a) : top;
  }
  return top;
}

/// Largest of all threads' values, for all threads.
__forceinline__ float block_max(float top) {
  __shared__ float partial[kThreads / 32];
  top = warp_max(top);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = top;
  __syncthreads();  // every warp's partial maximum is written before it is read
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) top = fmaxf(top, partial[w]);
  return top;
}

/// One chunk as planes.
template <Config kConfig>
__forceinline__ void write_chunk(unsigned short* to, int padded, const float (&x)[8],
                                 float inverse) {
  u32 high[4], low[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float a = x[2 * e] * inverse, b = x[2 * e + 1] * inverse;
    high[e] = pack<kConfig.element>(a, b);
    // An infinite value has no rest.
    low[e] = pack<kConfig.element>(
        fabsf(a) < infinity() ? a - widen<kConfig.element>(high[e] & 0xffffU) : 0.0F,
        fabsf(b) < infinity() ? b - widen_high<kConfig.element>(high[e]) : 0.0F);
  }
  store_global_16(to, {high[0], high[1], high[2], high[3]});
  if constexpr (kConfig.planes == 2) {
    store_global_16(to + padded, {low[0], low[1], low[2], low[3]});
  }
}

/// Elements from a head's first row to row `row`.
struct DenseRows {
  __forceinline__ i64 operator()(const Source& s, int row) const { return row * s.from.stride_s; }
};
struct PagedRows {
  const Pages& pages;
  int batch;
  __forceinline__ i64 operator()(const Source& s, int row) const {
    const PageRow at = page_row(pages, batch, row);
    return at.page * s.from.stride_b + at.row * s.from.stride_s;
  }
};

/// Rows row0 .. row0 + rows - 1 of `from` to rows `row` .. of the head, which are block `block`.
template <Config kConfig, class Offset>
__forceinline__ void pack_floats(const Source& s, const float* from, const Offset& offset, i64 bh,
                                 int block, int row, int row0, int rows) {
  const int chunks = s.padded / 8, total = rows * chunks, pitch = kConfig.planes * s.padded;
  const auto read = [&](float(&x)[8], int i) {
    read_floats(x, from + offset(s, row0 + i / chunks), s.from.stride_d, i % chunks * 8, s.cols,
                s.vectors);
  };
  unsigned short* to = s.to + (bh * s.rows + row) * pitch;
  const auto write = [&](const float(&x)[8], int i, float inverse) {
    write_chunk<kConfig>(to + i / chunks * pitch + i % chunks * 8, s.padded, x, inverse);
  };
  const int thread = static_cast<int>(threadIdx.x);
  // Up to 128 columns a thread keeps its chunks while the maximum is found; beyond it reads them
  // twice.
  constexpr int kKept = kScaleRows * 128 / 8 / kThreads;
  float kept[kKept][8], top = 0.0F;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = thread + k * kThreads;
    if (i < total) {
      read(kept[k], i);
      top = larger(top, kept[k]);
    }
  }
  for (int i = thread + kKept * kThreads; i < total; i += kThreads) {
    float x[8];
    read(x, i);
    top = larger(top, x);
  }
  // The largest value lands in [2^14, 2^15): inside fp16, with room for the sum of its products in
  // float32.
  const float scale = power_below(block_max(top)) * 0x1p-14F, inverse = power_inverse(scale);
  if (thread == 0) s.scale[bh * s.blocks + block] = scale;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = thread + k * kThreads;
    if (i < total) write(kept[k], i, inverse);
  }
  for (int i = thread + kKept * kThreads; i < total; i += kThreads) {
    float x[8];
    read(x, i);
    write(x, i, inverse);
  }
}

template <class Offset>
__forceinline__ void copy_elements(const Source& s, const unsigned short* from,
                                   const Offset& offset, i64 bh, int first, int row0, int rows) {
  unsigned short* to = s.to + (bh * s.rows + first) * s.padded;
  for (int i = static_cast<int>(threadIdx.x); i < rows * s.padded; i += kThreads) {
    const int row = i / s.padded, col = i % s.padded;
    to[i] = col < s.cols ? from[offset(s, row0 + row) + col * s.from.stride_d]
                         : static_cast<unsigned short>(0);
  }
}

template <Config kConfig, class Offset>
__forceinline__ void pack_block(const Source& s, i64 head, const Offset& offset, i64 bh, int block,
                                int row, int row0, int rows) {
  if constexpr (kConfig.from_float) {
    pack_floats<kConfig>(s, static_cast<const float*>(s.from.data) + head, offset, bh, block, row,
                         row0, rows);
  } else {
    copy_elements(s, static_cast<const unsigned short*>(s.from.data) + head, offset, bh, row, row0,
                  rows);
  }
}

__forceinline__ int source_of(const Args& args) {
  int which = 0;
  while (which + 1 < args.count && blockIdx.x >= args.sources[which + 1].first_block) ++which;
  return which;
}

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  let_next_start();
  const Source& s = args.sources[source_of(args)];
  const i64 index = blockIdx.x - s.first_block;
  const i64 bh = index / s.blocks;
  const int block = static_cast<int>(index % s.blocks);
  const int row0 = block * kScaleRows, rows = min(kScaleRows, s.rows - row0);
  const i64 head = bh / s.heads * s.from.stride_b + bh % s.heads * s.from.stride_h;
  pack_block<kConfig>(s, head, DenseRows{}, bh, block, row0, row0, rows);
}

template <Config kConfig>
__forceinline__ void kernel(const RaggedArgs& ragged) {
  let_next_start();
  const int which = source_of(ragged.args);
  const Source& s = ragged.args.sources[which];
  const i64 index = blockIdx.x - s.first_block;
  const i64 bh = index / s.blocks;
  const int block = static_cast<int>(index % s.blocks), row = block * kScaleRows;
  i64 head = bh % s.heads * s.from.stride_h;
  if (ragged.paged[which]) {
    const int batch = static_cast<int>(bh / s.heads);
    const int end = min(s.rows, ragged.key_lengths[batch * ragged.key_lengths_b]);
    pack_block<kConfig>(s, head, PagedRows{ragged.pages, batch}, bh, block, row, row,
                        max(0, min(kScaleRows, end - row)));
    return;
  }
  head += bh / s.heads * s.from.stride_b;
  int row0 = row, end = s.rows;
  if (ragged.sequences[which].offsets != nullptr) {
    const Sequence of = sequence_of<kScaleRows>(ragged.sequences[which], block);
    row0 = (block - first_block<kScaleRows>(of)) * kScaleRows;
    end = row0 < 0 ? 0 : of.length;
    head += of.begin * s.from.stride_s;
  }
  pack_block<kConfig>(s, head, DenseRows{}, bh, block, row, row0,
                      max(0, min(kScaleRows, end - row0)));
}

}  // namespace tilewise::pack_rows
