/// tile_lists: the row of tiles that a block makes, and what position and lengths show of a tile.
#pragma once

#include "cuda/kernels/tile_lists/args.h"
#include "cuda/tile/ptx/copy.cuh"
#include "cuda/tile/sequences.cuh"

namespace tilewise::tile_lists {

using namespace tile;

/// Lengths of an entry, and which pairs its positions show.
struct Lengths {
  int queries, keys, low, high;
};
__forceinline__ Lengths lengths_of(const Args& args, int batch) {
  Lengths of{args.seq_q, args.seq_k, args.low, args.high};
  const bool packed = args.queries.offsets != nullptr;
  if (packed) of.queries = min(sequence_at(args.queries, batch).length, args.seq_q);
  if (args.keys.offsets != nullptr) {
    of.keys = min(sequence_at(args.keys, batch).length, args.seq_k);
  } else if (args.key_lengths != nullptr) {
    of.keys = min(max(args.key_lengths[batch * args.key_lengths_b], 0), args.seq_k);
  }
  if (packed || args.key_lengths != nullptr) {
    of.low += of.keys - of.queries;
    of.high = min(of.high + of.keys - of.queries, args.top);
  }
  return of;
}

/// Which row of which list.
struct RowIndex {
  int list, row;
  __forceinline__ static RowIndex of(int nth, int rows) {
    const int list = nth / rows;
    return {list, nth - list * rows};
  }
  __forceinline__ static RowIndex of_block(int rows) {
    return of(static_cast<int>(blockIdx.x), rows);
  }
  /// Among the rows of all lists.
  __forceinline__ i64 at(int rows) const { return static_cast<i64>(list) * rows + row; }
};

/// Whether a kernel before has done the work, which this one and those behind it wait for.
__forceinline__ bool is_taken(const int* taken) {
  if (taken == nullptr) return false;
  wait_for_previous();
  return *taken != 0;
}

__forceinline__ void store_counts(const Args& args, i64 row, const unsigned* counts) {
  const int half = static_cast<int>(threadIdx.x);
  if (half < 2) args.counts[row * 2 + half] = static_cast<int>(counts[half]);
}

}  // namespace tilewise::tile_lists
