/// fwd_sm90: the producer of a problem with a block list, which says which tiles of keys a tile of
/// queries takes. Where rows list different tiles it is a warp, with a row to each lane; what one
/// thread must do lane 0 does. A unit without a list does not know of it: its machine code stays
/// what it was.
#pragma once

#include "cuda/kernels/fwd_sm90/listed.cuh"
#include "cuda/kernels/fwd_sm90/producer.cuh"
#include "cuda/tile/lists.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

template <Config kConfig, class Walk>
struct ListProducer {
  using Base = Producer<kConfig>;
  static constexpr bool kApart = kConfig.lists == Lists::parts;
  static constexpr bool kPacked = kConfig.lengths == Lengths::packed;
  /// Consumers ask for a mask's words of the tile after the one at hand.
  static constexpr bool kTellsNext = kConfig.options.mask && !kApart;
  /// parts: tiles of keys that are copied ahead of Q, whose place the slowest warpgroup may hold
  /// for long. No more than there are stages, or nobody would free one.
  static constexpr int kBeforeQ = (kConfig.shape.value_stages + 1) / 2;
  Base base;
  const int lane = kApart ? static_cast<int>(threadIdx.x) % 32 : 0;
  Walk walk;          ///< along the tile's row of its list, or rows
  int listed = 0;     ///< tiles of keys in it; apart: whether there is one
  SeenTile first;     ///< apart: of them
  int all_tiles = 0;  ///< packed: of all lists, and of the rows behind the last sequence
  // The tile after this one, looked up while this one's last keys are copied: each load on the way
  // takes about as long as a block of keys.
  enum Stage : int { kUnknown, kAsked, kOrdered, kFound };
  int stage = kUnknown;
  int next_index = 0, nth = 0, entry = 0;
  int rows[kListClasses];  ///< of each class
  Tile after;
  Walk walk_after;

  __forceinline__ void read_classes() {
#pragma unroll
    for (int c = 0; c < kListClasses; ++c) rows[c] = lists<kConfig>(base.args).classes[c];
    if constexpr (kPacked)
      all_tiles = base.args.tiles + rows_behind() * lists<kConfig>(base.args).heads;
  }
  __forceinline__ int tiles() const { return kPacked ? all_tiles : base.args.tiles; }
  /// packed: row blocks behind the last sequence.
  __forceinline__ int rows_behind() const {
    const int rows = kConfig.shape.warpgroups * warpgroup_queries<kConfig>(base.args);
    const int behind = base.args.q_rows - offset_at(base.args.cu_q, base.args.sequences);
    return (max(behind, 0) + rows - 1) / rows;
  }
  /// Asks which row of which list tile next_index is of.
  __forceinline__ void ask_order() {
    if (kPacked && next_index >= base.args.tiles) return;  // of no list
    const TileLists& of = lists<kConfig>(base.args);
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
    const TileLists& of = lists<kConfig>(base.args);
    if (kPacked && next_index >= base.args.tiles) {
      const int index = next_index - base.args.tiles;
      after.block = index / of.heads;
      after.head = index - after.block * of.heads;
      after.batch = base.args.sequences;
      walk_after.find_none();
      return;
    }
    const int list = entry / of.tiles;
    after.block = entry - list * of.tiles;
    const int bh = of.list_h == 0   ? (of.list_b == 0 ? nth : list * of.heads + nth)
                   : of.list_b == 0 ? nth * of.heads + list
                                    : list;
    after.batch = bh / of.heads;
    after.head = bh - after.batch * of.heads;
    walk_after.find(of, list, after.block, lane);
  }
  /// One step towards the tile after number `index`.
  __forceinline__ void look_ahead(int index) {
    if (stage == kUnknown) {
      if (lane == 0) base.asked = base.ask(index);
      stage = kAsked;
    } else if (stage == kAsked) {
      next_index = lane == 0 ? answer() : 0;
      if constexpr (kApart) next_index = __shfl_sync(~0U, next_index, 0);
      if (next_index < tiles()) ask_order();
      stage = kOrdered;
    } else if (stage == kOrdered) {
      if (next_index < tiles()) find_tile();
      stage = kFound;
    }
  }
  __forceinline__ int answer() const {
    if constexpr (!kConfig.schedule.dynamic) return static_cast<int>(base.asked);
    return tile::answer(base.args.counter, base.asked, tiles());
  }

  __forceinline__ void announce(Ring<2>& slots) const {
    const int s = static_cast<int>(slots.slot);
    if (lane == 0) {
      mbarrier_wait(base.shared.tile_empty(s), slots.parity ^ 1);
      store_shared_4(base.shared.slot(s), static_cast<u32>(base.tile.block));
      store_shared_4(base.shared.slot(s) + 4, static_cast<u32>(base.tile.batch));
      store_shared_4(base.shared.slot(s) + 8, static_cast<u32>(base.tile.head));
      store_shared_4(base.shared.slot(s) + 12, static_cast<u32>(listed));
      if constexpr (kConfig.lengths != Lengths::dense) {
        store_shared_4(base.shared.slot(s) + 16, static_cast<u32>(base.tile.seq_q));
        store_shared_4(base.shared.slot(s) + 20, static_cast<u32>(base.tile.seq_k));
        store_shared_4(base.shared.slot(s) + 24, static_cast<u32>(base.tile.q_begin));
      }
      if constexpr (!kApart) store_shared_4(base.shared.slot(s) + 28, static_cast<u32>(walk.whole));
      mbarrier_arrive(base.shared.tile_full(s));  // releases the stores to the consumers that wait
    }
    slots.advance();
  }
  __forceinline__ void load_all_q() const {
    for (int w = 0; w < kConfig.shape.warpgroups && lane == 0; ++w) base.load_q(w);
  }
  /// K of tile `block` of the keys, and which that is. `after`: the one that follows.
  __forceinline__ void load_k(int block, [[maybe_unused]] int after) {
    const int s = static_cast<int>(base.rK.slot);
    mbarrier_wait(base.shared.k_empty(s), base.rK.parity ^ 1);
    store_shared_4(base.shared.listed(s), static_cast<u32>(block));
    if constexpr (kTellsNext) store_shared_4(base.shared.listed(s) + 4, static_cast<u32>(after));
    // Tiles come from the right on: so many cut ones are left of it.
    if constexpr (kConfig.shows_cut())
      store_shared_4(base.shared.listed(s) + 8, static_cast<u32>(walk.cut));
    mbarrier_expect(base.shared.k_full(s), Shared<kConfig>::kPlan.k_stage);
    base.load_rows(&base.args.k, base.shared.k(s), base.shared.k_full(s), Base::kPanels, block);
    base.rK.advance();
  }
  /// K and V of a tile of keys, and what it is to the rows: a panel a lane, so that one instruction
  /// does for all of them what would take as long for each. A tile of 64 keys lasts hardly longer
  /// than a thread takes to copy it.
  __forceinline__ void load_both(const SeenTile& seen) {
    constexpr int kAll = Base::kPanels + Base::kPanelsV;
    const bool is_v = lane >= Base::kPanels;
    const int panel = is_v ? lane - Base::kPanels : lane;
    const int s = static_cast<int>(is_v ? base.rV.slot : base.rK.slot);
    const bool by_v = is_v && !kOneRing<kConfig>;
    const u32 full = by_v ? base.shared.v_full(s) : base.shared.k_full(s);
    if (lane < kAll) {
      mbarrier_wait(by_v ? base.shared.v_empty(s) : base.shared.k_empty(s),
                    (by_v ? base.rV.parity : base.rK.parity) ^ 1);
      if (lane == 0) {
        store_shared_4(base.shared.listed(s), seen.word);
        store_shared_4(base.shared.listed(s) + 4, seen.rows);
      }
      constexpr SharedPlan kPlan{kConfig};
      if (kOneRing<kConfig>) {
        if (lane == 0) mbarrier_expect(full, kPlan.k_stage + kPlan.v_stage);
      } else if (panel == 0) {
        mbarrier_expect(full, is_v ? kPlan.v_stage : kPlan.k_stage);
      }
    }
    __syncwarp();  // before any of them arrives
    if (lane < kAll) {
      const u32 to =
          (is_v ? base.shared.v(s) : base.shared.k(s)) + panel * Base::kBlockN * kPanelRowBytes;
      base.load_panel(is_v ? &base.args.v : &base.args.k, to, full, panel * kPanelColumns,
                      seen.tile());
    }
    base.rK.advance();
    base.rV.advance();
  }
  /// Every tile of keys that rows of a warpgroup list.
  __forceinline__ void copy_apart(int index) {
    base.head_k = base.tile.head / base.args.group;
    int copied = 0, left = walk.least();
    SeenTile at = first;
    while (at.there()) {
      const SeenTile next = walk.next();
      if (!next.there()) at.word |= SeenTile::kLast;
      load_both(at);
      at = next;
      if (++copied == kBeforeQ) load_all_q();
      if (--left <= kFound + 1) look_ahead(index);
    }
    if (copied < kBeforeQ) load_all_q();
    base.rQ.advance();
    while (stage != kFound) look_ahead(index);
  }
  __forceinline__ void copy_tile(int index) {
    base.head_k = kConfig.pack_heads ? base.tile.head : base.tile.head / base.args.group;
    const bool any = listed > 0;
    int block = any ? walk.next() : 0;
    int after = kTellsNext && listed > 1 ? walk.next() : block;
    if (any) load_k(block, after);
    load_all_q();
    for (int n = listed - 1; n > 0; --n) {
      const int next = kTellsNext ? after : walk.next();
      if (kTellsNext && n > 1) after = walk.next();
      load_k(next, after);
      base.load_v(block);
      block = next;
      if (n <= kFound + 1) look_ahead(index);
    }
    base.rQ.advance();
    while (stage != kFound) look_ahead(index);
    if (any) base.load_v(block);
  }

  __forceinline__ void run() {
    if (lane == 0) base.begin();
    read_classes();
    Ring<2> slots;
    next_index = static_cast<int>(blockIdx.x);
    stage = kAsked;
    if (next_index < tiles()) {
      ask_order();
      find_tile();
    }
    while (next_index < tiles()) {
      base.tile = after;
      walk = walk_after;
      if constexpr (kApart) {
        first = walk.next();
        listed = first.there() ? 1 : 0;
      } else {
        listed = walk.listed();
      }
      stage = kUnknown;
      const int index = next_index;
      base.look_up_lengths();
      // A sequence may be shorter than the one that rows of lists are counted by.
      if (kPacked && first_query<kConfig>(base.args, base.tile) >= base.tile.seq_q) {
        while (stage != kFound) look_ahead(index);
        continue;
      }
      announce(slots);
      if constexpr (kApart) {
        copy_apart(index);
      } else {
        copy_tile(index);
      }
    }
    base.tile.block = -1;
    announce(slots);
  }
};

/// Along one row where warpgroups see the same tiles of keys, else along that of each.
template <Config kConfig>
struct WalkOf {
  using Type = ListWalk<>;
};
template <Config kConfig>
requires(kConfig.lists == Lists::parts) struct WalkOf<kConfig> {
  using Type = RowsWalk<kConfig.shape.warpgroups>;
};

}  // namespace tilewise::fwd_sm90
