/// decode_sm90: which items there are. Lengths are on the device, so a warp counts: its lanes hold
/// the items of 32 entries each, and it goes from 32 to the next 32 as its items do.
#pragma once

#include "cuda/kernels/decode_sm90/shared.cuh"

namespace tilewise::decode_sm90 {

/// Order of items: entries, their parts, key heads, row tiles fastest: what runs at a time reads
/// neighbouring memory.
template <Config kConfig>
struct Items {
  const Args& args;
  const int lane;
  int total = 0;  ///< items of all entries
  // The 32 entries from `base` on.
  int base = 0, before = 0;    ///< items of the entries before
  int seq_k = 0, through = 0;  ///< of the lane's entry: keys, items of those up to it
  PartRange range;

  __forceinline__ Items(const Args& a, int lane_) : args(a), lane(lane_) {
    for (int first = 0; first < args.batch; first += 32) {
      PartRange parts;
      int keys;
      total += items_of(first + lane, parts, keys);
    }
    for (int other = 16; other > 0; other /= 2) total += __shfl_xor_sync(~0U, total, other);
    count();
  }

  __forceinline__ int per_part() const { return args.heads_k * args.row_tiles; }
  __forceinline__ int items_of(int entry, PartRange& parts, int& keys) const {
    keys = 0;
    if (entry >= args.batch) return 0;
    keys = keys_of(args.keys, entry);
    parts = part_range(args.keys, keys);
    return parts.count * per_part();
  }
  __forceinline__ void count() {
    through = items_of(base + lane, range, seq_k);
    for (int step = 1; step < 32; step *= 2) {
      const int left = __shfl_sync(~0U, through, lane - step & 31);
      if (lane >= step) through += left;
    }
  }

  /// Item `index`, which comes after those asked for before; all lanes get it.
  __forceinline__ Item at(int index) {
    int here = __shfl_sync(~0U, through, 31);
    while (index >= before + here) {
      before += here;
      base += 32;
      count();
      here = __shfl_sync(~0U, through, 31);
    }
    return find(index - before);
  }
  __forceinline__ Item find(int index) const {
    const u32 after = __ballot_sync(~0U, through > index);
    const int entry = 31 - __clz(static_cast<int>(after & (0U - after)));
    const int first = entry == 0 ? 0 : __shfl_sync(~0U, through, entry - 1 & 31);
    PartRange parts;
    parts.first = __shfl_sync(~0U, range.first, entry);
    parts.count = __shfl_sync(~0U, range.count, entry);
    Item item;
    item.batch = base + entry;
    item.seq_k = __shfl_sync(~0U, seq_k, entry);
    item.parts = parts.count;
    int rest = index - first;
    item.part = rest / per_part();
    rest -= item.part * per_part();
    item.head = rest / args.row_tiles;
    item.row_tile = rest - item.head * args.row_tiles;
    find_keys<kConfig>(args, parts, item);
    return item;
  }
};

}  // namespace tilewise::decode_sm90
