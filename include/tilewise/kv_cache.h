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

#include "tilewise/attention.h"
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

/// Sequences that begin with the same keys: a system prompt, the examples before each question.
struct PrefixTensors {
  Tensor q;                   ///< as forward()'s, packed queries too
  Tensor k_prefix, v_prefix;  ///< (1, Hk, P, D), (1, Hk, P, Dv): keys before those of each sequence
  Tensor k, v;                ///< each sequence's own keys, as forward()'s: a batch, packed, pages
  Tensor o, lse;              ///< as forward()'s
};

/// What forward_prefix() runs. `own` is the attention over each sequence's own keys.
struct PrefixPlan {
  Plan prefix, own;
  std::int64_t workspace_bytes = 0;
};

/// Chooses the kernels. Data may be null. Throws what plan() throws.
TILEWISE_API PrefixPlan plan_prefix(const PrefixTensors& tensors, const AttentionSpec& spec = {});

/// Attention over the prefix and then each sequence's own keys. The prefix is read once for all
/// sequences: their queries are rows of one problem. Both results are rounded to O's type and then
/// merged by their log-sum-exp (docs/numerics.md).
///
/// `spec` speaks of a sequence's own keys: causal, lengths, tables and mask_expression (tree_mask()
/// too) count from their first one. Every query sees the whole prefix. scale, softcap and sinks are
/// those of all keys. Windows, ALiBi, bias, mask, score functions, dropout, block lists, top-left
/// causal and deterministic are refused: InvalidArgument. The batch and sequence axes of q must be
/// one axis in memory, as (B, S, H, D) has them.
///
/// Asynchronous on CUDA, fit for graphs, and one workspace for all of it. Throws what forward()
/// throws.
TILEWISE_API PrefixPlan forward_prefix(const PrefixTensors& tensors, const AttentionSpec& spec = {},
                                       const Launch& launch = {});

}  // namespace tilewise
