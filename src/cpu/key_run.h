/// Keys that lie one behind the other.
#pragma once

#include <algorithm>
#include <utility>

#include "problem/problem.h"

namespace tilewise::cpu {

/// How many of `count` keys from j on are in consecutive rows: all, or the rest of j's page.
inline int key_run(const Problem& p, std::int64_t j, int count) {
  if (!p.paged) return count;
  return static_cast<int>(std::min<std::int64_t>(count, p.page_size - j % p.page_size));
}

/// Where the rows of some keys begin in K and V, from a head's row 0 on: elements, or null.
struct KeyRowList {
  std::int64_t *k, *v;
};

/// Of the keys of `run`, in order.
inline void list_key_rows(const Problem& p, std::int64_t b, const Sequence& s, KeyRange run,
                          KeyRowList to) {
  const auto list = [&](Problem::KeyRow first, std::int64_t count) {
    for (const auto& [pool, at] : {std::pair{&p.k, &to.k}, std::pair{&p.v, &to.v}}) {
      if (*at == nullptr) continue;
      std::int64_t row = first.batch * pool->strides[0] + first.row * pool->strides[2];
      for (std::int64_t n = 0; n < count; ++n, row += pool->strides[2]) *(*at)++ = row;
    }
  };
  if (run.empty()) return;
  if (!p.paged) return list(p.key_row(b, s, run.begin), run.end - run.begin);
  // NOTE: one division for all pages. With a key each, divisions take as long as the products.
  const auto* table =
      static_cast<const std::int32_t*>(p.block_table.data) + b * p.block_table.strides[0];
  std::int64_t page = run.begin / p.page_size;
  std::int64_t slot = run.begin % p.page_size;
  for (std::int64_t j = run.begin; j < run.end; ++page, slot = 0) {
    const std::int64_t count = std::min(run.end - j, p.page_size - slot);
    list({table[page * p.block_table.strides[1]], slot}, count);
    j += count;
  }
}

}  // namespace tilewise::cpu
