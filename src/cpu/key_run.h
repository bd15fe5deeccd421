/// Keys that lie one behind the other.
#pragma once

#include <algorithm>

#include "problem/problem.h"

namespace tilewise::cpu {

/// How many of `count` keys from j on are in consecutive rows: all, or the rest of j's page.
inline int key_run(const Problem& p, std::int64_t j, int count) {
  if (!p.paged) return count;
  return static_cast<int>(std::min<std::int64_t>(count, p.page_size - j % p.page_size));
}

/// at[n]: the element of `pool` (K or V) where the row of key run.begin + n begins, from a head's
/// row 0 on.
inline void list_key_rows(const Problem& p, const Tensor& pool, std::int64_t b, const Sequence& s,
                          KeyRange run, std::int64_t* at) {
  for (std::int64_t j = run.begin; j < run.end;) {
    const Problem::KeyRow key = p.key_row(b, s, j);
    const int count = key_run(p, j, static_cast<int>(run.end - j));
    std::int64_t row = key.batch * pool.strides[0] + key.row * pool.strides[2];
    for (int n = 0; n < count; ++n, row += pool.strides[2]) *at++ = row;
    j += count;
  }
}

}  // namespace tilewise::cpu
