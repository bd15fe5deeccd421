/// From a block of packed rows to the sequence that it is of, and from a key to its page. What a
/// kernel is then given are the arguments of a dense problem: pointers to the sequence's rows.
#pragma once

#include "cuda/tile/ptx/copy.cuh"
#include "cuda/tile/sequences_args.h"

namespace tilewise::tile {

struct Sequence {
  int index = 0, begin = 0, length = 0;
};

__forceinline__ int offset_at(const Sequences& s, int index) {
  const i64 at = index * s.stride;
  return s.wide ? static_cast<int>(static_cast<const i64*>(s.offsets)[at])
                : static_cast<const int*>(s.offsets)[at];
}
/// `index` up to s.count, which stands for what lies behind the last offset.
__forceinline__ Sequence sequence_at(const Sequences& s, int index) {
  const int begin = offset_at(s, index);
  const int end = index < s.count ? min(offset_at(s, index + 1), s.rows) : s.rows;
  return {index, begin, max(0, end - begin)};
}

/// Blocks of kRows rows are counted without knowing a length: sequence b, whose rows begin at r,
/// has those from r / kRows + b on, at most one more than it needs. The host counts
/// rows / kRows + count + 1 of them.
template <int kRows>
__forceinline__ int first_block(const Sequence& s) {
  return s.begin / kRows + s.index;
}
template <int kRows>
__forceinline__ Sequence sequence_of(const Sequences& s, int block) {
  int low = 0, high = s.count;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (offset_at(s, middle) / kRows + middle <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return sequence_at(s, low);
}

/// Rows of 16-bit elements from the sequence's first on. `chunked`: as pack_rows lays them out, in
/// blocks of kScaleRows.
__forceinline__ void move_rows(View& view, const Sequence& s, bool chunked) {
  const i64 row = chunked ? first_block<kScaleRows>(s) * kScaleRows : s.begin;
  view.data = static_cast<unsigned short*>(view.data) + row * view.stride_s;
}
__forceinline__ void move_rows(View4& view, const Sequence& s, int element_bytes) {
  view.data = static_cast<unsigned char*>(view.data) + s.begin * view.stride_s * element_bytes;
}
/// Elements of a head's blocks of kScaleRows rows, where (b, h, block) stands for an element and
/// there is one b in memory.
template <class T>
__forceinline__ void move_blocks(T*& elements, const Sequence& s, int heads, i64 blocks,
                                 i64 elems = 1) {
  const i64 entry = static_cast<i64>(s.index) * heads * blocks;
  elements += (first_block<kScaleRows>(s) - entry) * elems;
}
/// Rows of bias and mask of the sequence.
__forceinline__ void move_pairs(PairTensors& pairs, const Sequence& s) {
  move_rows(pairs.bias, s, pairs.type == BiasType::float32 ? 4 : 2);
  if (pairs.mask.data != nullptr) move_rows(pairs.mask, s, 1);
}

/// Page and row in it of key `key`.
struct PageRow {
  i64 page;
  int row;
};
__forceinline__ int page_of(const Pages& pages, int key) {
  return static_cast<int>(static_cast<u64>(key) * pages.multiplier >> pages.shift);
}
__forceinline__ PageRow page_row(const Pages& pages, int batch, int key) {
  const int page = page_of(pages, key);
  const int* table = pages.table + batch * pages.table_b;
  return {table[page * pages.table_p], key - page * pages.size};
}

/// As Tile::load_async, keys `first` .. of entry `batch` through its page table: `global` is a head
/// of page 0. The table is not read beyond `rows` keys.
template <int kThreads, class Tile>
__forceinline__ void load_pages_async(const Tile& tile, const Pages& pages, int batch, int first,
                                      const unsigned short* global, const View& view, int rows,
                                      int cols, int thread) {
  constexpr int kTotal = Tile::kBytes / Tile::kPitch * Tile::kChunks;
  static_assert(Tile::kBytes == Tile::kPlaneBytes);
#pragma unroll
  for (int index = thread; index < kTotal; index += kThreads) {
    const int row = index / Tile::kChunks, chunk = index % Tile::kChunks;
    const unsigned short* from = global;
    const bool there = row < rows && chunk * 8 < cols;
    if (there) {
      const PageRow at = page_row(pages, batch, first + row);
      from += at.page * view.stride_b + at.row * view.stride_s + chunk * 8;
    }
    copy_async_16(tile.address(row, chunk), from, there ? 16 : 0);
  }
}

}  // namespace tilewise::tile
