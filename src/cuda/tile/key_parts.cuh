/// Which parts of its keys a batch entry has.
#pragma once

#include "cuda/tile/key_parts_args.h"
#include "cuda/tile/order.cuh"

namespace tilewise::tile {

/// Parts `first` .. `first` + `count` - 1 hold the keys that the entry's queries see. An entry
/// without keys has one part, which sees nothing.
struct PartRange {
  int first = 0, count = 1;
};

__forceinline__ PartRange part_range(const KeyParts& parts, int seq_k) {
  const Diagonals d(parts.positions, parts.seq_q, seq_k);
  const int begin = max(0, d.low), end = min(seq_k, parts.seq_q - 1 + d.high);
  PartRange range;
  if (end <= begin) return range;
  range.first = begin / parts.keys;
  range.count = (end + parts.keys - 1) / parts.keys - range.first;
  return range;
}

}  // namespace tilewise::tile
