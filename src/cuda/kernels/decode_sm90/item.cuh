/// decode_sm90 and mla_sm90: the item of work, its way between warps, its rows and their results.
///
/// An item is one part of one batch entry's keys, one key head, one tile of its query rows. Row r
/// of a key head is query r / group of head r % group of its group.
#pragma once

#include "cuda/kernels/decode_sm90/args.h"
#include "cuda/tile/hopper/mbarrier.cuh"
#include "cuda/tile/key_parts.cuh"
#include "cuda/tile/mma.cuh"

namespace tilewise::decode_sm90 {

using namespace tile;

/// `batch` < 0: no more. `part` counts from the entry's first one on.
struct Item {
  int batch = -1, head = 0, row_tile = 0, part = 0, parts = 1, seq_k = 0;
  int begin = 0, end = 0;  ///< keys that some row of the item sees

  /// Blocks of keys. NOTE: both roles ask here: an item without keys may begin inside of a block.
  __forceinline__ int first_block() const { return begin / kBlockN; }
  __forceinline__ int end_block() const {
    return begin < end ? (end + kBlockN - 1) / kBlockN : first_block();
  }
};

// ---- from the warp that hands out items to the others

/// Announces an item to the warps that read it; called by a warp.
template <class AnyShared>
__forceinline__ void announce_item(const AnyShared& shared, Ring<SharedPlan::kItems>& slots,
                                   const Item& item, int lane) {
  if (lane == 0) {
    mbarrier_wait(shared.item_empty(slots.slot), slots.parity ^ 1);
    const u32 to = shared.item(slots.slot);
    const int words[8] = {item.batch, item.head,  item.row_tile, item.part,
                          item.parts, item.seq_k, item.begin,    item.end};
#pragma unroll
    for (int i = 0; i < 8; ++i) store_shared_4(to + 4 * i, static_cast<u32>(words[i]));
    mbarrier_arrive(shared.item_full(slots.slot));  // releases the stores to the readers
  }
  slots.advance();
}

/// The next announced item, read by a warp.
template <class AnyShared>
__forceinline__ Item next_item(const AnyShared& shared, Ring<SharedPlan::kItems>& slots, int lane) {
  mbarrier_wait(shared.item_full(slots.slot), slots.parity);
  const u32 from = shared.item(slots.slot);
  const Bytes16 a = load_shared_16(from), b = load_shared_16(from + 16);
  __syncwarp();  // all lanes have read
  if (lane == 0) mbarrier_arrive(shared.item_empty(slots.slot));
  slots.advance();
  return {static_cast<int>(a.x), static_cast<int>(a.y), static_cast<int>(a.z),
          static_cast<int>(a.w), static_cast<int>(b.x), static_cast<int>(b.y),
          static_cast<int>(b.z), static_cast<int>(b.w)};
}

// ---- rows

/// Rows of the item's key head that a thread has. Behind the last row: that one, which does not
/// exist.
template <int kRows>
struct ItemRows {
  bool exists[kRows];
  int query[kRows], head[kRows];  ///< head: of Q

  /// The thread's row r is row `row` of the key head, whose last row is `last`.
  __forceinline__ void set(int r, const Args& args, const Item& item, int row, int last) {
    exists[r] = row <= last;
    row = min(row, last);
    const int i = row / args.group;
    query[r] = i;
    head[r] = item.head * args.group + row - i * args.group;
  }
};

/// Keys from `begin` up to `end`.
struct KeySpan {
  int begin, end;
};

/// Keys of the item that all rows of its tile see: no block of them needs a mask.
template <int kTileRows>
__forceinline__ KeySpan uncut_keys(const Args& args, const Item& item, const Diagonals& d) {
  const int first = item.row_tile * kTileRows;
  const int last = min(first + kTileRows, args.keys.seq_q * args.group) - 1;
  return {max(item.begin, last / args.group + d.low), min(item.end, first / args.group + d.high)};
}

/// (F4) Hidden scores of the thread's two rows become -inf: replaced, so that nothing of a hidden
/// key leaks. `key` is the warp's first. Bit 2 n + e of `shown(r, column)` is 0 where another
/// reason hides key `column` + 8 n + e. CONTRACT 4, 5, 10
template <int kN, class Shown>
__forceinline__ void hide_keys(Acc (&S)[1][kN], const Item& item, const Diagonals& d,
                               const ItemRows<2>& rows, int key, int lane, Shown shown) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int column = key + 2 * (lane % 4);
    const int begin = max(rows.query[r] + d.low, item.begin) - column;
    const int end = min(rows.query[r] + d.high, item.end) - column;
    const u32 bits = shown(r, column);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int j = 8 * n + e;
        if (j < begin || j >= end || (bits >> (2 * n + e) & 1) == 0)
          S[0][n][2 * r + e] = -infinity();
      }
    }
  }
}

// ---- results

/// A row's statistics after its last key: m in the log2 domain, and the factor that makes O of the
/// sums of P V.
struct RowResult {
  float m, l, inverse;
};

/// (F11) 1 / l. A sink is a key of its own in the entry's first part: it takes probability and has
/// no value.
__forceinline__ RowResult finished(const Args& args, const Item& item, int head, float row_m,
                                   float row_l) {
  float l = row_l;
  float m = row_m == -infinity() ? 0.0F : row_m;
  float inverse = l == 0.0F ? 0.0F : 1.0F / l;
  const float sink = args.sinks == nullptr || item.part > 0
                         ? -infinity()
                         : args.sinks[head * args.sinks_h] * kLog2e;
  if (sink > -infinity()) {
    const float top = l == 0.0F ? sink : fmaxf(m, sink);
    const float alpha = l == 0.0F ? 0.0F : exp2_approx(m - top);
    l = l * alpha + exp2_approx(sink - top);
    m = top;
    inverse = alpha / l;
  }
  return {m, l, inverse};
}

/// Where a row of the item's part lies among those that `combine` merges.
__forceinline__ i64 part_row(const Args& args, const Item& item, int head, int query) {
  return (static_cast<i64>(item.batch) * args.heads_q + head) * args.keys.seq_q + query +
         item.part * args.part_rows;
}

__forceinline__ void store_part_statistics(const Args& args, i64 row, const RowResult& result) {
  args.m_part[row] = result.l == 0.0F ? -infinity() : result.m;
  args.m_part[row + args.most_parts * args.part_rows] = result.l;
}

/// (F11) LSE = m + log l
__forceinline__ void store_lse(const Args& args, const Item& item, int head, int query,
                               const RowResult& result) {
  args.lse[item.batch * args.lse_b + head * args.lse_h + query * args.lse_s] =
      (result.m + log2_approx(result.l)) * kLn2;
}

}  // namespace tilewise::decode_sm90
