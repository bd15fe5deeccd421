/// bwd_convert: gradients that were summed in float32, in the order of accumulator fragments and in
/// one part or several, to rows of the gradient's type.
///
/// A fragment of 16 rows x 8 columns is 32 lanes of four floats (tile/shared_tile.cuh,
/// add_fragments). A thread takes four lanes, which hold eight columns of row g and of row g + 8.
#pragma once

#include "cuda/kernels/rows/convert_args.h"
#include "cuda/tile/math.cuh"
#include "cuda/tile/sequences.cuh"

namespace tilewise::bwd_convert {

using namespace tile;

/// Eight columns of a row.
template <Type kType>
__forceinline__ void store(const Source& s, i64 base, int row, int col, const float (&x)[8]) {
  if (row >= s.rows || col >= s.cols) return;
  if constexpr (kType == Type::float32) {
    float* to = static_cast<float*>(s.to.data) + base + row * s.to.stride_s + col * s.to.stride_d;
    const auto word = [&](int e) { return static_cast<u32>(__float_as_int(x[e] * s.factor)); };
#pragma unroll
    for (int e = 0; e < 8; e += 4) {
      if (s.vectors && col + e + 4 <= s.cols) {
        store_global_16(to + e, {word(e), word(e + 1), word(e + 2), word(e + 3)});
        continue;
      }
#pragma unroll
      for (int i = e; i < e + 4; ++i) {
        if (col + i < s.cols) to[i * s.to.stride_d] = x[i] * s.factor;
      }
    }
    return;
  }
  constexpr Element kElement = kType == Type::bf16 ? Element::bf16 : Element::fp16;
  unsigned short* to =
      static_cast<unsigned short*>(s.to.data) + base + row * s.to.stride_s + col * s.to.stride_d;
  u32 words[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    words[e] = pack<kElement>(x[2 * e] * s.factor, x[2 * e + 1] * s.factor);
  }
  if (s.vectors && col + 8 <= s.cols) {
    store_global_16(to, {words[0], words[1], words[2], words[3]});
    return;
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (col + e < s.cols) {
      to[e * s.to.stride_d] = static_cast<unsigned short>(words[e / 2] >> (16 * (e % 2)));
    }
  }
}

template <Config kConfig>
__forceinline__ void convert(const Source& s, const Sequences* sequences) {
  const i64 item = (blockIdx.x - s.first_block) * static_cast<i64>(kThreads) + threadIdx.x;
  if (item >= s.items) return;
  wait_for_previous();  // for the sums
  const int g = static_cast<int>(item % 8);
  const i64 fragment = item / 8;
  const int per_band = s.padded / 8, bands = s.padded_rows / 16;
  const int col = static_cast<int>(fragment % per_band) * 8;
  const i64 band = fragment / per_band;
  const i64 bh = band / bands;
  int row = static_cast<int>(band % bands) * 16 + g;
  float upper[8] = {}, lower[8] = {};
  const i64 part_elems = s.items * 16;
  for (int part = 0; part < s.parts; ++part) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const Bytes16 v =
          load_global_16(s.sums + part * part_elems + fragment * 128 + (4 * g + t) * 4);
      upper[2 * t] += __int_as_float(static_cast<int>(v.x));
      upper[2 * t + 1] += __int_as_float(static_cast<int>(v.y));
      lower[2 * t] += __int_as_float(static_cast<int>(v.z));
      lower[2 * t + 1] += __int_as_float(static_cast<int>(v.w));
    }
  }
  i64 base = bh / s.heads * s.to.stride_b + bh % s.heads * s.to.stride_h;
  if constexpr (kConfig.packed) {
    const Sequence of = sequence_of<kScaleRows>(*sequences, row / kScaleRows);
    row -= first_block<kScaleRows>(of) * kScaleRows;
    base += of.begin * s.to.stride_s;
    Source own = s;
    own.rows = row < 0 ? 0 : of.length;
    store<kConfig.type>(own, base, row, col, upper);
    store<kConfig.type>(own, base, row + 8, col, lower);
    return;
  }
  store<kConfig.type>(s, base, row, col, upper);
  store<kConfig.type>(s, base, row + 8, col, lower);
}

template <Config kConfig>
__forceinline__ void kernel(const Args& args) {
  int which = 0;
  while (which + 1 < args.count && blockIdx.x >= args.sources[which + 1].first_block) ++which;
  convert<kConfig>(args.sources[which], nullptr);
}

template <Config kConfig>
__forceinline__ void kernel(const RaggedArgs& ragged) {
  convert<kConfig>(ragged.args.sources[0], &ragged.sequences);
}

}  // namespace tilewise::bwd_convert
