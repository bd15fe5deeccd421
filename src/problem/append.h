/// Append: the arguments of append(), checked and in canonical form.
#pragma once

#include <cstdint>

#include "problem/problem.h"
#include "tilewise/kv_cache.h"

namespace tilewise {

/// All tensors have rank 4; the batch axis of packed ones has stride 0. A contiguous cache is a
/// pool whose entries are pages.
struct Append {
  Device device;
  DType dtype = DType::float32;
  std::int64_t batch = 0, heads_q = 0, heads_k = 0;
  std::int64_t rows = 0;    ///< new rows of an entry; packed: their upper bound
  std::int64_t rows_q = 0;  ///< queries of an entry; packed: as rows
  std::int64_t head_dim = 0, head_dim_v = 0;
  std::int64_t rotary_dim = 0;  ///< 0: nothing turns
  std::int64_t positions = 0;   ///< rows of the tables
  std::int64_t page_size = 0, pages = 0, table_pages = 0;
  bool packed = false;
  Tensor k, v, k_cache, v_cache, q, rotated_q;
  Tensor lengths, new_lengths, skipped, block_table, cu_seqlens;
  Rotary rotary;

  std::int64_t capacity() const { return table_pages * page_size; }
  bool has_queries() const { return rotated_q.defined(); }

  /// For host tensors: an entry's new rows and queries along the S axes, its number of keys before
  /// the call, and the position of its first new row.
  struct Entry {
    std::int64_t begin = 0, rows = 0, rows_q = 0, length = 0, position = 0;
  };
  Entry entry(std::int64_t b) const;
  /// Page of the pool that holds key j of entry b; of a host table.
  std::int64_t page_of(std::int64_t b, std::int64_t j) const;
};

/// Judges every argument; of host tensors also whether every entry has room. Throws
/// InvalidArgument.
Append make_append(const AppendTensors& tensors, const AppendSpec& spec);

}  // namespace tilewise
