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

}  // namespace tilewise::cpu
