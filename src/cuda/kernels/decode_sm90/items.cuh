/// decode_sm90 and mla_sm90: which items there are, and the warp that hands them out. Lengths are
/// on the device, so this warp counts: its lanes hold the items of 32 entries each, and it goes
/// from 32 to the next 32 as its items do.
#pragma once

#include "cuda/kernels/decode_sm90/item.cuh"
#include "cuda/tile/hopper/tile_counter.cuh"

namespace tilewise::decode_sm90 {

/// Keys of an item whose entry, part and row tile are known.
template <int kTileRows>
__forceinline__ void find_keys(const Args& args, const PartRange& range, Item& item) {
  const Diagonals d(args.keys.positions, args.keys.seq_q, item.seq_k);
  const int row = item.row_tile * kTileRows;
  const int last = min(row + kTileRows, args.keys.seq_q * args.group) - 1;
  const int part = (range.first + item.part) * args.keys.keys;
  item.begin = max(max(0, row / args.group + d.low), part);
  item.end = min(min(item.seq_k, last / args.group + d.high), part + args.keys.keys);
  item.end = max(item.begin, item.end);
}

/// Order of items: entries, their parts, key heads, row tiles fastest: what runs at a time reads
/// neighbouring memory.
template <int kTileRows>
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
    find_keys<kTileRows>(args, parts, item);
    return item;
  }
};

/// Asks for a block's next item, where a launch has more items than blocks.
struct ItemRequest {
  bool counts = false, claimed = false;
  u64 asked = 0;

  /// Behind the copies of the item's n-th of `blocks` blocks: asks once, when the first places of
  /// the ring of `stages` are filled. The answer is on its way while the others are copied.
  __forceinline__ void ask_behind(const Args& args, int lane, int n, int blocks, int stages) {
    if (!counts || lane > 0 || n != max(0, min(stages, blocks) - 1)) return;
    if (!claimed) claim(args.counter);
    claimed = true;
    asked = ask(args.counter);
  }
};

/// The warp that hands out items: announces each and copies its keys. The first one is the block's
/// own index. `producer.copy(item)` asks for the next.
template <int kTileRows, class Producer>
__forceinline__ void hand_out_items(Producer& producer) {
  const Args& args = producer.args;
  ItemRequest& request = producer.request;
  Items<kTileRows> items(args, producer.lane);
  request.counts = items.total > static_cast<int>(gridDim.x);
  int index = static_cast<int>(blockIdx.x);
  while (index < items.total) {
    const Item item = items.at(index);
    announce_item(producer.shared, producer.slots, item, producer.lane);
    if (item.begin == item.end) request.ask_behind(args, producer.lane, 0, 0, 0);
    producer.copy(item);
    int next = items.total;
    if (request.counts && producer.lane == 0)
      next = answer(args.counter, request.asked, items.total);
    index = __shfl_sync(~0U, next, 0);
  }
  announce_item(producer.shared, producer.slots, {}, producer.lane);
}

}  // namespace tilewise::decode_sm90
