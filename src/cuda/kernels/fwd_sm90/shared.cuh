/// fwd_sm90: what both roles share: addresses in shared memory, barriers, tiles and their ranges of
/// keys.
#pragma once

#include "cuda/kernels/fwd_sm90/args.h"
#include "cuda/tile/hopper/mbarrier.cuh"
#include "cuda/tile/order.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

/// The place of a role in the one or two stages of a bias in boxes, in one register. NOTE: nothing
/// where there is none.
template <int kStages>
struct HeldPlace {
  static_assert(kStages <= 2);
  u32 uses = 0;
  __forceinline__ int slot() const { return static_cast<int>(kStages == 1 ? 0 : uses & 1); }
  __forceinline__ u32 parity() const { return (kStages == 1 ? uses : uses >> 1) & 1; }
  __forceinline__ void advance() { ++uses; }
};
template <>
struct HeldPlace<0> {};
template <Config kConfig>
using BoxPlace = HeldPlace<kConfig.boxes_bias() ? kConfig.shape.bias_stages : 0>;

/// Addresses of what SharedPlan lays out. "full": the copies have landed; "empty": the readers are
/// done.
template <Config kConfig>
struct Shared {
  static constexpr SharedPlan kPlan{kConfig};
  static constexpr int kWarpgroups = kConfig.shape.warpgroups, kStages = kConfig.shape.stages;
  static constexpr int kWarps = 4 * kConfig.shape.computing();
  static constexpr bool kByRows = kConfig.pages == PageCopies::rows;
  /// Warps that read an announced tile: the consumers, and producers that do not announce.
  static constexpr int kReaders = kWarps + (kConfig.paged()                ? kProducerWarps - 1
                                            : kConfig.schedule.boxes_apart ? 1
                                                                           : 0);
  u32 base;

  __forceinline__ u32 q(int buffer, int warpgroup) const {
    return base + kPlan.q + buffer * kPlan.q_buffer + warpgroup * kPlan.q_warpgroup;
  }
  __forceinline__ u32 k(int stage) const { return base + kPlan.k + stage * kPlan.k_stage; }
  __forceinline__ u32 v(int stage) const { return base + kPlan.v + stage * kPlan.v_stage; }
  __forceinline__ u32 o(int warpgroup) const {
    return base + kPlan.o +
           warpgroup * (kConfig.shape.own_o ? kPlan.o_warpgroup : kPlan.q_warpgroup);
  }
  __forceinline__ u32 barrier(int index) const {
    return base + kPlan.barriers + index * kMbarrierBytes;
  }
  __forceinline__ u32 k_full(int stage) const { return barrier(stage); }
  __forceinline__ u32 k_empty(int stage) const { return barrier(kStages + stage); }
  __forceinline__ u32 v_full(int stage) const { return barrier(2 * kStages + stage); }
  __forceinline__ u32 v_empty(int stage) const { return barrier(3 * kStages + stage); }
  __forceinline__ u32 q_full(int buffer, int warpgroup) const {
    return barrier(4 * kStages + buffer * kWarpgroups + warpgroup);
  }
  __forceinline__ u32 q_empty(int buffer, int warpgroup) const {
    return q_full(buffer, warpgroup) + kConfig.shape.q_buffers * kWarpgroups * kMbarrierBytes;
  }
  __forceinline__ u32 tile_full(int slot) const {
    return barrier(4 * kStages + 2 * kConfig.shape.q_buffers * kWarpgroups + slot);
  }
  __forceinline__ u32 tile_empty(int slot) const { return tile_full(slot) + 2 * kMbarrierBytes; }
  /// A stage of the bias: a panel of 64 keys below the other, of each warpgroup.
  __forceinline__ u32 boxes(int stage, int warpgroup) const {
    constexpr int kGroup = kConfig.shape.block_n / 64 * SharedPlan::kPanel;
    return base + kPlan.boxes + stage * kPlan.bias_stage + warpgroup * kGroup;
  }
  __forceinline__ u32 boxes_full(int stage, int warpgroup) const {
    if constexpr (!kConfig.schedule.boxes_apart)
      return tile_empty(0) + (2 + stage) * kMbarrierBytes;
    return tile_empty(0) + (2 + stage * kWarpgroups + warpgroup) * kMbarrierBytes;
  }
  __forceinline__ u32 boxes_empty(int stage, int warpgroup) const {
    return boxes_full(kConfig.shape.bias_stages + stage, warpgroup);
  }
  __forceinline__ u32 slot(int index) const {
    return base + kPlan.slots + index * SharedPlan::kSlot;
  }
  /// Which tile of its list a stage of K holds; parts: what it is to the rows behind that.
  __forceinline__ u32 listed(int stage) const {
    return base + kPlan.listed + SharedPlan::kListed * stage;
  }

  __forceinline__ void init_barriers() const {
    // Every warp of a warpgroup arrives for itself: one warp's wait does not prove that the others
    // have read.
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(k_full(s), kByRows ? 32 * kProducerWarps : 1);
      mbarrier_init(v_full(s), kByRows ? 32 * kProducerWarps : 1);
      mbarrier_init(k_empty(s), kWarps);
      mbarrier_init(v_empty(s), kWarps);
    }
    for (int i = 0; i < kConfig.shape.q_buffers * kWarpgroups; ++i) {
      mbarrier_init(q_full(0, i), 1);
      mbarrier_init(q_empty(0, i), kConfig.o_in_q() ? 1 : 4);
    }
    for (int s = 0; s < kConfig.shape.bias_stages; ++s) {
      for (int i = 0; i < kConfig.box_barriers(); ++i) {
        mbarrier_init(boxes_full(s, i), 1);
        mbarrier_init(boxes_empty(s, i), kWarps / kConfig.box_barriers());
      }
    }
    for (int s = 0; s < 2; ++s) {
      mbarrier_init(tile_full(s), 1);
      mbarrier_init(tile_empty(s), kReaders);
    }
    mbarrier_fence_init();
  }
};

/// A tile as the producer announces it; `block` < 0: no more. The lengths, and where the queries
/// begin in a packed tensor, only where Args does not say.
struct Tile {
  int block = -1, batch = 0, head = 0, split = 0;
  int seq_q = 0, seq_k = 0, q_begin = 0;
};

/// A warp reads a tile from its slot.
template <Config kConfig>
__forceinline__ void load_tile(Tile& tile, const Shared<kConfig>& shared, int slot) {
  const Bytes16 words = load_shared_16(shared.slot(slot));
  tile.block = static_cast<int>(words.x);
  tile.batch = static_cast<int>(words.y);
  tile.head = static_cast<int>(words.z);
  tile.split = static_cast<int>(words.w);
  if constexpr (kConfig.lengths != Lengths::dense) {
    const Bytes16 lengths = load_shared_16(shared.slot(slot) + 16);
    tile.seq_q = static_cast<int>(lengths.x);
    tile.seq_k = static_cast<int>(lengths.y);
    tile.q_begin = static_cast<int>(lengths.z);
  }
}

template <Config kConfig>
__forceinline__ int queries(const Args& args, const Tile& tile) {
  return kConfig.lengths == Lengths::dense ? args.seq_q : tile.seq_q;
}
template <Config kConfig>
__forceinline__ int keys(const Args& args, const Tile& tile) {
  return kConfig.lengths == Lengths::dense ? args.seq_k : tile.seq_k;
}

/// Queries in the 64 rows of a warpgroup.
template <Config kConfig>
__forceinline__ int warpgroup_queries(const Args& args) {
  return kConfig.pack_heads ? 64 >> args.pack_shift : 64;
}
/// First query of a tile.
template <Config kConfig>
__forceinline__ int first_query(const Args& args, const Tile& tile) {
  return tile.block * kConfig.shape.warpgroups * warpgroup_queries<kConfig>(args);
}

/// Whether entries of the batch are rows of one tensor.
template <Config kConfig>
inline constexpr bool kSharesRows = kConfig.lengths == Lengths::packed && !kConfig.documents;

/// Coordinates beside the column of row `query` of Q and O, where their maps have rank 5: packed
/// sequences (head, x, y, 0 or batch), packed heads (head in group, group, query, batch).
template <Config kConfig>
__forceinline__ void query_coordinates(int (&c)[4], const Args& args, const Tile& tile, int query) {
  if constexpr (kConfig.lengths == Lengths::packed) {
    c[0] = kConfig.pack_heads ? tile.head * args.group : tile.head;
    // NOTE: a box that lies wholly behind x is an illegal access (seen on an H100). The last row
    // stands for it: what is read then is not used.
    c[1] = args.q_rows - tile.seq_q + min(query, tile.seq_q - 1);
    c[2] = tile.seq_q + tile.q_begin;
    c[3] = kSharesRows<kConfig> ? 0 : tile.batch;
  } else {
    c[0] = 0;
    c[1] = tile.head;
    c[2] = query;
    c[3] = tile.batch;
  }
}
template <Config kConfig>
inline constexpr bool kQueryRank5 = kConfig.pack_heads || kConfig.lengths == Lengths::packed;

template <Config kConfig>
__forceinline__ Diagonals diagonals(const Args& args, const Tile& tile) {
  Diagonals d(Positions{}, 0, 0);
  const int shift = kConfig.lengths == Lengths::dense ? 0 : tile.seq_k - tile.seq_q;
  // A constant where nothing is hidden on the left: the ranges fold to a few instructions.
  d.low = kConfig.mask == Mask::both ? args.low + shift : -Positions::kFar;
  d.high = args.high + shift;
  if constexpr (kConfig.lengths != Lengths::dense) d.high = min(d.high, args.top);
  return d;
}

/// A tile whose rows are being finished, and the first query of its warpgroup's rows.
struct Finished {
  Tile tile;
  int query;
};

/// Parts of the keys take blocks in turn where no position hides any: part p those that are p
/// modulo args.splits. They read neighbouring memory at a time. Else each takes consecutive ones of
/// those that its tile has.
template <Config kConfig>
inline constexpr bool kPartsInTurn = kConfig.mask == Mask::none ? kConfig.split : false;
/// How many of the first `blocks` blocks of keys are the tile's.
template <Config kConfig>
__forceinline__ int share(const Args& args, const Tile& tile, int blocks) {
  if constexpr (!kPartsInTurn<kConfig>) return blocks;
  return max(blocks - tile.split + args.splits - 1, 0) / args.splits;
}
/// The block of keys that is the tile's n-th. Of a list that is only known as it is walked.
template <Config kConfig>
__forceinline__ int key_block(const Args& args, const Tile& tile, int n) {
  if constexpr (kConfig.schedule.from_diagonal) {
    static_assert(kConfig.mask == Mask::none && !kConfig.split && !kConfig.pack_heads);
    const int seq_q = queries<kConfig>(args, tile), seq_k = keys<kConfig>(args, tile);
    const int full = seq_k / kConfig.shape.block_n;
    if (n >= full) return n;
    const int last =
        min(first_query<kConfig>(args, tile) + 64 * kConfig.shape.warpgroups, seq_q) - 1;
    const int diagonal = min(max(last + seq_k - seq_q, 0) / kConfig.shape.block_n, full - 1);
    const int block = n + diagonal + 1;
    return block < full ? block : block - full;
  }
  return kPartsInTurn<kConfig> ? n * args.splits + tile.split : n;
}

/// Key blocks of queries query .. query_end-1 of a tile; see key_block().
template <Config kConfig>
__forceinline__ BlockRange block_range(const Args& args, const Tile& tile, int query,
                                       int query_end) {
  constexpr int kN = kConfig.shape.block_n;
  const int seq_k = keys<kConfig>(args, tile);
  BlockRange range;
  if constexpr (kConfig.mask == Mask::none) {
    range.end = share<kConfig>(args, tile, (seq_k + kN - 1) / kN);
    range.full_end = share<kConfig>(args, tile, seq_k / kN);
  } else {
    range = key_blocks<kN>(diagonals<kConfig>(args, tile), query, query_end, seq_k);
    if constexpr (kConfig.options.tree) {
      range.full_end = min(range.full_end, max(seq_k - queries<kConfig>(args, tile), 0) / kN);
      range.settle();
    }
  }
  return range;
}
/// Those of the whole tile, within its part.
template <Config kConfig>
__forceinline__ BlockRange tile_range(const Args& args, const Tile& tile) {
  const int query = first_query<kConfig>(args, tile);
  const int end = query + kConfig.shape.warpgroups * warpgroup_queries<kConfig>(args);
  BlockRange range =
      block_range<kConfig>(args, tile, query, min(end, queries<kConfig>(args, tile)));
  if constexpr (kConfig.split && !kPartsInTurn<kConfig>) {
    const int part = (range.end - range.begin + args.splits - 1) / args.splits;
    range.clip(range.begin + tile.split * part, range.begin + (tile.split + 1) * part);
  }
  return range;
}

/// Key blocks of the rows of a warpgroup: what it skips is not in them. Without skip_blocks all
/// blocks of the tile, of which only those inside the full range need no mask.
template <Config kConfig>
__forceinline__ void own_range(BlockRange& own, const Args& args, const Tile& tile, int query,
                               const BlockRange& all) {
  const int seq_q = queries<kConfig>(args, tile);
  const int end = min(query + warpgroup_queries<kConfig>(args), seq_q);
  own = block_range<kConfig>(args, tile, query, end);
  if constexpr (kConfig.split && !kPartsInTurn<kConfig>) own.clip(all.begin, all.end);
  if constexpr (kConfig.schedule.skip_blocks) {
    if (query >= seq_q) own.end = own.begin;
    if (own.begin >= own.end) own.begin = own.end = all.begin;
  } else {
    own.begin = all.begin;
    own.end = all.end;
    own.settle();  // rows that see nothing have no full range: it must not begin before the tile's
  }
}

inline constexpr float kLargest = 3.402823466e38F;
/// From here on a rounded maximum is off by 2^3 and more; P up to 2^(kSlack + 2^2) fits every type.
inline constexpr float kHugeMaximum = 0x1p26F;
/// What a thread's sum of P over a block may be when the maxima were trusted: every P fits its
/// type, and P V float32.
template <Config kConfig>
inline constexpr float kOutgrown = kConfig.element == Element::bf16 ? 0x1p30F : 0x1p15F;

}  // namespace tilewise::fwd_sm90
