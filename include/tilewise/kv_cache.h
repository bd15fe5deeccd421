/// Keys and values into a cache, before attention reads them there.
///
///   tilewise::append({.k = k, .v = v, .k_cache = pool_k, .v_cache = pool_v, .lengths = before,
///                     .new_lengths = after, .q = q, .rotated_q = q_r},
///                    {.block_table = table, .rotary = {.cos = cos, .sin = sin}});
///   tilewise::forward({.q = q_r, .k = pool_k, .v = pool_v, .o = o},
///                     {.key_lengths = after, .block_table = table});
///
/// docs/serving.md has the whole loop.
#pragma once

#include <cstdint>

#include "tilewise/error.h"
#include "tilewise/runtime.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// Rotary positions (Su et al. 2021): in the first R elements of a row of K and Q, pair p at
/// position n turns by an angle whose cosine and sine are cos(n, p) and sin(n, p). The turn is
/// computed in float32 and rounded once.
struct Rotary {
  Tensor cos, sin;           ///< (positions, R / 2), float32 or k's type; R is at most D
  bool interleaved = false;  ///< pairs (2p, 2p + 1); else (p, p + R / 2), as GPT-NeoX
  Tensor positions;          ///< int32 (B): of an entry's first new row; not given: its length
  /// All queries of an entry stand at its first position: flash_attn's reading without a mask.
  bool one_query_position = false;
};

struct AppendTensors {
  Tensor k, v;  ///< new rows (B, Hk, S, D) and (B, Hk, S, Dv); packed: (1, Hk, total, D)
  /// Written: (entries, Hk, capacity, D) and (.., Dv); with a block table pools (pages, Hk,
  /// page_size, D).
  Tensor k_cache, v_cache;
  Tensor lengths;      ///< int32 (B): keys of each entry before the call
  Tensor new_lengths;  ///< int32 (B), written when given; not the memory of lengths
  Tensor skipped;      ///< bool or uint8 (B), written when given: 1 = the entry was skipped
  /// (B, Hq, Sq, D) or packed as k; rotated_q is written and shares no memory with q. Both or none.
  Tensor q, rotated_q;
};

struct AppendSpec {
  /// int32 (B, max_pages). An entry of a contiguous cache is a page of its capacity: a table (B, 1)
  /// says which entry; without a table entry b is the cache's b.
  Tensor block_table;
  /// Packed new rows (and queries): int32 or int64 (B + 1). max_seqlen: bound of their lengths,
  /// 0 = read from host offsets.
  Tensor cu_seqlens;
  std::int64_t max_seqlen = 0;
  Rotary rotary;
};

/// Writes row i of entry b's new keys and values as key lengths[b] + i of the cache, keys turned to
/// their positions, and turns queries; a query whose position has no row in the tables stays.
///
/// Nothing is lost where an entry's pages, capacity or rotary tables end too soon, or its table
/// names no page of the pool: on the CPU InvalidArgument names the sequence and its length, and
/// nothing is written. On a GPU, whose lengths the host does not read, that entry's rows are
/// skipped as a whole: its keys and its length stay, and `skipped` says so.
///
/// Types: float32, bfloat16, float16, one for all rows. Two entries must not write to one row.
/// Asynchronous on CUDA, and fit for graphs: nothing is allocated or read back. Throws
/// InvalidArgument, DeviceError, CompileError.
TILEWISE_API void append(const AppendTensors& tensors, const AppendSpec& spec = {},
                         const Launch& launch = {});

}  // namespace tilewise
