/// fwd_sm90: the producer of a problem with a block list, which says which tiles of keys a tile of
/// queries takes. A unit without a list does not know of it: its machine code stays what it was.
#pragma once

#include "cuda/kernels/fwd_sm90/listed.cuh"
#include "cuda/kernels/fwd_sm90/producer.cuh"
#include "cuda/tile/lists.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

template <Config kConfig, class Walk>
struct ListProducer : Producer<kConfig> {
  using Base = Producer<kConfig>;
  using Base::args, Base::asked, Base::head_k, Base::rK, Base::rQ, Base::shared, Base::tile;
  using Base::load_q, Base::load_v;
  static constexpr bool kApart = kConfig.lists == Lists::parts;
  Walk walk;       ///< along the tile's row of its list, or rows
  int listed = 0;  ///< tiles of keys in it; apart: whether there is one
  u32 first = 0;   ///< apart: of them
  // The tile after this one, looked up while this one's last keys are copied: each load on the way
  // takes about as long as a block of keys.
  enum Stage : int { kUnknown, kAsked, kOrdered, kFound };
  int stage = kUnknown;
  int next_index = 0, nth = 0, entry = 0;
  int rows[kListClasses];  ///< of each class

  __forceinline__ void read_classes() {
#pragma unroll
    for (int c = 0; c < kListClasses; ++c) rows[c] = lists<kConfig>(args).classes[c];
  }
  /// Asks which row of which list tile next_index is of.
  __forceinline__ void ask_order() {
    const TileLists& of = lists<kConfig>(args);
    int index = next_index, first = 0, here = rows[0];
#pragma unroll
    for (int c = 1; c < kListClasses; ++c) {
      if (index < here * of.sharing) break;
      index -= here * of.sharing;
      first += here;
      here = rows[c];
    }
    nth = index / here;  // of those who share the list
    entry = of.order[first + index - nth * here];
  }
  /// What the list says of batch and head, and what is left to tell; asks for the row's bits.
  __forceinline__ void find_tile() {
    const TileLists& of = lists<kConfig>(args);
    const int list = entry / of.tiles;
    after.block = entry - list * of.tiles;
    const int pair = of.list_h == 0   ? (of.list_b == 0 ? nth : list * of.heads + nth)
                     : of.list_b == 0 ? nth * of.heads + list
                                      : list;
    after.batch = pair / of.heads;
    after.head = pair - after.batch * of.heads;
    walk_after.find(of, list, after.block);
  }
  /// One step towards the tile after number `index`.
  __forceinline__ void look_ahead(int index) {
    if (stage == kUnknown) {
      asked = this->ask(index);
      stage = kAsked;
    } else if (stage == kAsked) {
      next_index = this->answer(asked);
      if (next_index < args.tiles) ask_order();
      stage = kOrdered;
    } else if (stage == kOrdered) {
      if (next_index < args.tiles) find_tile();
      stage = kFound;
    }
  }
  Tile after;
  Walk walk_after;

  __forceinline__ void announce(Ring<2>& slots) const {
    const int s = static_cast<int>(slots.slot);
    mbarrier_wait(shared.tile_empty(s), slots.parity ^ 1);
    store_shared_4(shared.slot(s), static_cast<u32>(tile.block));
    store_shared_4(shared.slot(s) + 4, static_cast<u32>(tile.batch));
    store_shared_4(shared.slot(s) + 8, static_cast<u32>(tile.head));
    store_shared_4(shared.slot(s) + 12, static_cast<u32>(listed));
    if constexpr (kConfig.lengths != Lengths::dense) {
      store_shared_4(shared.slot(s) + 16, static_cast<u32>(tile.seq_q));
      store_shared_4(shared.slot(s) + 20, static_cast<u32>(tile.seq_k));
      store_shared_4(shared.slot(s) + 24, static_cast<u32>(tile.q_begin));
    }
    if constexpr (!kApart) store_shared_4(shared.slot(s) + 28, static_cast<u32>(walk.whole));
    mbarrier_arrive(shared.tile_full(s));  // releases the stores to the consumers that wait for it
    slots.advance();
  }
  /// K of tile `block` of the keys, and which that is: `word`.
  __forceinline__ void load_k(int block, u32 word) {
    const int s = static_cast<int>(rK.slot);
    mbarrier_wait(shared.k_empty(s), rK.parity ^ 1);
    store_shared_4(shared.listed(s), word);
    mbarrier_expect(shared.k_full(s), Shared<kConfig>::kPlan.k_stage);
    this->load_rows(&args.k, shared.k(s), shared.k_full(s), Base::kPanels, block);
    rK.advance();
  }
  __forceinline__ void load_seen_k(u32 word, bool last) {
    load_k(SeenTile{word}.tile(), word | (last ? SeenTile::kLast : 0));
  }
  /// Every tile of keys that rows of a warpgroup list.
  __forceinline__ void copy_apart(int index) {
    head_k = tile.head / args.group;
    u32 next = first;
    if (listed > 0) {
      next = walk.next();
      load_seen_k(first, next == Walk::kEnd);
    }
    for (int w = 0; w < kConfig.warpgroups; ++w) load_q(w);
    int at = SeenTile{first}.tile();
    for (int left = walk.least - 1; listed > 0 && next != Walk::kEnd; --left) {
      const u32 after_next = walk.next();
      load_seen_k(next, after_next == Walk::kEnd);
      load_v(at);
      at = SeenTile{next}.tile();
      next = after_next;
      if (left <= kFound + 1) look_ahead(index);
    }
    rQ.advance();
    while (stage != kFound) look_ahead(index);
    if (listed > 0) load_v(at);
  }
  __forceinline__ void copy_tile(int index) {
    head_k = tile.head / args.group;
    const bool any = listed > 0;
    int block = any ? walk.next() : 0;
    if (any) load_k(block, static_cast<u32>(block));
    for (int w = 0; w < kConfig.warpgroups; ++w) load_q(w);
    for (int n = listed - 1; n > 0; --n) {
      const int next = walk.next();
      load_k(next, static_cast<u32>(next));
      load_v(block);
      block = next;
      if (n <= kFound + 1) look_ahead(index);
    }
    rQ.advance();
    while (stage != kFound) look_ahead(index);
    if (any) load_v(block);
  }

  __forceinline__ void run() {
    tma_prefetch_map(&args.q);
    tma_prefetch_map(&args.k);
    tma_prefetch_map(&args.v);
    tma_prefetch_map(&args.o);
    this->claim_counter();
    read_classes();
    Ring<2> slots;
    next_index = static_cast<int>(blockIdx.x);
    stage = kAsked;
    if (next_index < args.tiles) {
      ask_order();
      find_tile();
    }
    while (next_index < args.tiles) {
      tile = after;
      walk = walk_after;
      if constexpr (kApart) {
        first = walk.next();
        listed = first == Walk::kEnd ? 0 : 1;
      } else {
        listed = walk.listed();
      }
      stage = kUnknown;
      const int index = next_index;
      this->look_up_lengths();
      announce(slots);
      if constexpr (kApart) {
        copy_apart(index);
      } else {
        copy_tile(index);
      }
    }
    tile.block = -1;
    announce(slots);
  }
};

/// Along one row where warpgroups see the same tiles of keys, else along that of each.
template <Config kConfig>
struct WalkOf {
  using Type = ListWalk;
};
template <Config kConfig>
requires(kConfig.lists == Lists::parts) struct WalkOf<kConfig> {
  using Type = RowsWalk<kConfig.warpgroups>;
};

}  // namespace tilewise::fwd_sm90
