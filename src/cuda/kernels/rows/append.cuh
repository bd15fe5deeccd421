/// append_rows: new rows of K and V into a cache, contiguous or in pages, and rows of Q to a tensor
/// of their own; K and Q turned to their positions (rotary tables).
///
///   y_p = x_p cos - x_q sin,  y_q = x_p sin + x_q cos   for the pair (p, q) of a row
///
/// A thread writes 16 bytes of a row. Every block of an entry asks first whether the whole entry
/// has room, positions and pages; one that has not keeps what it has, and says so.
#pragma once

#include "cuda/kernels/rows/append_args.h"
#include "cuda/tile/math.cuh"
#include "cuda/tile/ptx/copy.cuh"
#include "cuda/tile/sequences.cuh"

namespace tilewise::append_rows {

using namespace tile;

template <Type kType>
struct Word {
  using Bits = unsigned short;
  static constexpr Element kElement = kType == Type::bf16 ? Element::bf16 : Element::fp16;
  static __forceinline__ float value(Bits bits) { return widen<kElement>(bits); }
  static __forceinline__ Bits bits(float x) {
    return static_cast<Bits>(pack<kElement>(x, 0.0F) & 0xffffU);
  }
};
template <>
struct Word<Type::float32> {
  using Bits = float;
  static __forceinline__ float value(float x) { return x; }
  static __forceinline__ float bits(float x) { return x; }
};

/// One entry's part of a call.
struct Entry {
  int b, begin, rows, rows_q, length, position;
};
__forceinline__ Entry entry_of(const Args& a, int b) {
  Entry e{b, 0, a.rows, a.rows_q, a.lengths[b * a.lengths_b], 0};
  if (a.new_rows.offsets != nullptr) {
    const Sequence s = sequence_at(a.new_rows, b);
    e.begin = s.begin;
    e.rows = e.rows_q = s.length;
  }
  e.position = a.first_positions == nullptr ? e.length : a.first_positions[b * a.first_positions_b];
  return e;
}

__forceinline__ i64 page_at(const Args& a, int b, int page) {
  return a.pages.table == nullptr ? b : a.pages.table[b * a.pages.table_b + page * a.pages.table_p];
}

/// False, for all threads, where the entry cannot take all its rows.
__forceinline__ bool fits(const Args& a, const Entry& e) {
  const i64 end = static_cast<i64>(e.length) + e.rows;
  bool good = e.length >= 0 && end <= static_cast<i64>(a.table_pages) * a.pages.size;
  if (a.cos != nullptr && e.rows > 0) {
    good = good && e.position >= 0 && static_cast<i64>(e.position) + e.rows <= a.positions;
  }
  if (good && e.rows > 0) {
    const int last = page_of(a.pages, static_cast<int>(end - 1));
    for (int page = page_of(a.pages, e.length) + static_cast<int>(threadIdx.x); page <= last;
         page += kThreads) {
      const i64 at = page_at(a, e.b, page);
      good = good && at >= 0 && at < a.pool_pages;
    }
  }
  return __syncthreads_or(good ? 0 : 1) == 0;
}

template <Config kConfig>
struct Mover {
  using W = Word<kConfig.type>;
  using Bits = typename W::Bits;
  static constexpr int kChunk = 16 / static_cast<int>(sizeof(Bits));

  const Args& a;

  __forceinline__ float table(const void* values, i64 at) const {
    return a.float_tables ? static_cast<const float*>(values)[at]
                          : W::value(static_cast<const Bits*>(values)[at]);
  }
  /// Element d of a row that stands at `position`.
  __forceinline__ float turned(const Bits* row, i64 stride, int d, int position) const {
    const int half = a.rotary_dim / 2;
    const bool first = a.interleaved ? d % 2 == 0 : d < half;
    const int partner = a.interleaved ? d ^ 1 : first ? d + half : d - half;
    const int pair = a.interleaved ? d / 2 : first ? d : d - half;
    const float c = table(a.cos, position * a.cos_n + pair * a.cos_p);
    const float s = table(a.sin, position * a.sin_n + pair * a.sin_p);
    const float x = W::value(row[d * stride]), y = W::value(row[partner * stride]);
    return first ? x * c - y * s : y * s + x * c;
  }

  /// Chunk `chunk` of a row; position < 0: it is copied.
  __forceinline__ void move(const Rows& r, const Bits* from, Bits* to, int chunk,
                            int position) const {
    const int begin = chunk * kChunk, end = min(begin + kChunk, r.dim);
    const bool turns = position >= 0 && begin < a.rotary_dim;
    if (r.vectors && !turns) {
      store_global_16(to + begin, load_global_16(from + begin));
      return;
    }
    for (int d = begin; d < end; ++d) {
      const bool own = turns && d < a.rotary_dim;
      to[d * r.to.stride_d] =
          own ? W::bits(turned(from, r.from.stride_d, d, position)) : from[d * r.from.stride_d];
    }
  }

  __forceinline__ void key_row(const Rows& r, const Entry& e, int item, bool turns) const {
    const int chunk = item % r.chunks, h = item / r.chunks % r.heads, i = item / r.chunks / r.heads;
    const int key = e.length + i, page = page_of(a.pages, key);
    const Bits* from = static_cast<const Bits*>(r.from.data) + e.b * r.from.stride_b +
                       h * r.from.stride_h + (e.begin + i) * r.from.stride_s;
    Bits* to = static_cast<Bits*>(r.to.data) + page_at(a, e.b, page) * r.to.stride_b +
               h * r.to.stride_h + (key - page * a.pages.size) * r.to.stride_s;
    move(r, from, to, chunk, turns ? e.position + i : -1);
  }
  __forceinline__ void query_row(const Entry& e, int item) const {
    const Rows& r = a.q;
    const int chunk = item % r.chunks, h = item / r.chunks % r.heads, i = item / r.chunks / r.heads;
    const i64 place = e.begin + i;
    const Bits* from = static_cast<const Bits*>(r.from.data) + e.b * r.from.stride_b +
                       h * r.from.stride_h + place * r.from.stride_s;
    Bits* to = static_cast<Bits*>(r.to.data) + e.b * r.to.stride_b + h * r.to.stride_h +
               place * r.to.stride_s;
    const int position = e.position + (a.one_query_position ? 0 : i);
    const bool turns = a.cos != nullptr && position >= 0 && position < a.positions;
    move(r, from, to, chunk, turns ? position : -1);
  }
};

template <Config kConfig>
__forceinline__ void kernel(const Args& a) {
  const int b = static_cast<int>(blockIdx.x) / a.blocks;
  const int block = static_cast<int>(blockIdx.x) % a.blocks;
  const Entry e = entry_of(a, b);
  const bool good = fits(a, e);
  if (block == 0 && threadIdx.x == 0) {
    if (a.new_lengths != nullptr)
      a.new_lengths[b * a.new_lengths_b] = e.length + (good ? e.rows : 0);
    if (a.skipped != nullptr) a.skipped[b * a.skipped_b] = good ? 0 : 1;
  }
  const Mover<kConfig> mover{a};
  const int step = a.blocks * kThreads;
  const int start = block * kThreads + static_cast<int>(threadIdx.x);
  if (good) {
    for (int i = start; i < e.rows * a.k.heads * a.k.chunks; i += step) {
      mover.key_row(a.k, e, i, a.cos != nullptr);
    }
    for (int i = start; i < e.rows * a.v.heads * a.v.chunks; i += step) {
      mover.key_row(a.v, e, i, false);
    }
  }
  for (int i = start; i < e.rows_q * a.q.heads * a.q.chunks; i += step) mover.query_row(e, i);
}

}  // namespace tilewise::append_rows
