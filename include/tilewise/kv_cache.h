/// KV caches: appending to them, and attention over a shared prefix.
///
///   tilewise::append({.k = k, .v = v, .k_cache = pool_k, .v_cache = pool_v, .lengths = before,
///                     .new_lengths = after, .q = q, .rotated_q = q_r},
///                    {.block_table = table, .rotary = {.cos = cos, .sin = sin}});
///   tilewise::forward({.q = q_r, .k = pool_k, .v = pool_v, .o = o},
///                     {.key_lengths = after, .block_table = table});
///
/// docs/serving.md shows the whole loop.
#pragma once

#include <cstdint>

#include "tilewise/attention.h"
#include "tilewise/error.h"
#include "tilewise/runtime.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// Rotary positions (Su et al. 2021). In the first R elements of a row of K and Q, pair p at
/// position n is rotated by the angle with cosine cos(n, p) and sine sin(n, p). The rotation is
/// computed in float32 and rounded once.
struct Rotary {
  Tensor cos = {}, sin = {};  ///< (positions, R / 2), float32 or k's type; R <= D
  bool interleaved = false;   ///< true: pairs (2p, 2p + 1); false: (p, p + R / 2), as in GPT-NeoX
  Tensor positions = {};  ///< int32 (B): position of an entry's first new row; default: its length
  /// All queries of an entry have its first position, as in flash_attn without a mask.
  bool one_query_position = false;
};

struct AppendTensors {
  Tensor k = {}, v = {};  ///< new rows (B, Hk, S, D) and (B, Hk, S, Dv); packed: (1, Hk, total, D)
  /// Outputs: (entries, Hk, capacity, D) and (.., Dv), or with a block table pools (pages, Hk,
  /// page_size, D).
  Tensor k_cache = {}, v_cache = {};
  Tensor lengths = {};      ///< int32 (B): number of keys of each entry before the call
  Tensor new_lengths = {};  ///< optional output: int32 (B); must not share memory with lengths
  Tensor skipped = {};      ///< optional output: bool or uint8 (B); 1 = the entry was skipped
  /// Optional, both or neither: (B, Hq, Sq, D), or packed like k. rotated_q is an output and must
  /// not share memory with q.
  Tensor q = {}, rotated_q = {};
};

struct AppendSpec {
  /// int32 (B, max_pages). In a contiguous cache each entry is one page, and a table (B, 1) selects
  /// the entry. Without a table, entry b uses cache entry b.
  Tensor block_table = {};
  /// Packed new rows and queries: int32 or int64 (B + 1). max_seqlen is an upper bound of their
  /// lengths; 0 = read from host offsets, kNoRows = all are empty.
  Tensor cu_seqlens = {};
  std::int64_t max_seqlen = 0;
  Rotary rotary = {};
};

/// Writes row i of entry b's new keys and values as key lengths[b] + i of the cache. Rotates keys
/// and queries to their positions. A query whose position is outside the tables is not rotated.
///
/// An entry can run out of room: its pages, capacity or rotary tables end, or its table names no
/// page of the pool. On the CPU, InvalidArgument then names the sequence and its length, and
/// nothing is written. On a GPU the host does not read lengths. The whole entry is skipped there:
/// its keys and length do not change, and `skipped` reports it.
///
/// All rows have one type: float32, bfloat16 or float16. Two entries must not write to the same
/// row. On CUDA the call is asynchronous and graphs can capture it: it allocates nothing and reads
/// nothing back. Throws InvalidArgument, DeviceError, CompileError.
TILEWISE_API void append(const AppendTensors& tensors, const AppendSpec& spec = {},
                         const Launch& launch = {});

/// Sequences that start with the same keys, for example a system prompt.
struct PrefixTensors {
  Tensor q = {};  ///< as for forward(), packed or not
  /// (1, Hk, P, D), (1, Hk, P, Dv): the shared keys and values
  Tensor k_prefix = {}, v_prefix = {};
  Tensor k = {}, v = {};  ///< each sequence's own keys, as for forward(): a batch, packed or paged
  Tensor o = {}, lse = {};  ///< as forward()'s
};

/// The plans of forward_prefix(). `own` is for the attention over each sequence's own keys.
struct PrefixPlan {
  Plan prefix = {}, own = {};
  std::int64_t workspace_bytes = 0;
};

/// Chooses the kernels. Data may be null. Throws the same errors as plan().
TILEWISE_API PrefixPlan plan_prefix(const PrefixTensors& tensors, const AttentionSpec& spec = {});

/// Computes attention over the prefix and each sequence's own keys. It reads the prefix once for
/// all sequences, with their queries as rows of one problem. Both results are rounded to O's type
/// and then merged by their log-sum-exp (docs/numerics.md).
///
/// `spec` applies to a sequence's own keys: causal, lengths, tables and mask_expression (also
/// tree_mask()) count from the first of them. Every query sees the whole prefix. scale, softcap and
/// sinks apply to all keys. Windows, ALiBi, bias, mask, score functions, dropout, block lists,
/// top-left causal and deterministic throw InvalidArgument. The batch and sequence axes of q must
/// form one axis in memory, as in (B, S, H, D).
///
/// On CUDA the call is asynchronous and graphs can capture it. It uses one workspace. Throws the
/// same errors as forward().
TILEWISE_API PrefixPlan forward_prefix(const PrefixTensors& tensors, const AttentionSpec& spec = {},
                                       const Launch& launch = {});

}  // namespace tilewise
