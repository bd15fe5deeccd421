/// fwd_sm90: the producer of a problem with a block list, which says which tiles of keys a tile of
/// queries takes. A unit without a list does not know of it: its machine code stays what it was.
#pragma once

#include "cuda/kernels/fwd_sm90/listed.cuh"
#include "cuda/kernels/fwd_sm90/producer.cuh"
#include "cuda/tile/lists.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

template <Config kConfig>
struct ListProducer : Producer<kConfig> {
  using Base = Producer<kConfig>;
  using Base::args, Base::asked, Base::head_k, Base::rK, Base::rQ, Base::shared, Base::tile;
  using Base::load_q, Base::load_v;
  ListWalk walk;  ///< along the tile's row of its list

  __forceinline__ void announce(Ring<2>& slots) const {
    const int s = static_cast<int>(slots.slot);
    mbarrier_wait(shared.tile_empty(s), slots.parity ^ 1);
    store_shared_4(shared.slot(s), static_cast<u32>(tile.block));
    store_shared_4(shared.slot(s) + 4, static_cast<u32>(tile.batch));
    store_shared_4(shared.slot(s) + 8, static_cast<u32>(tile.head));
    store_shared_4(shared.slot(s) + 12, static_cast<u32>(walk.listed));
    if constexpr (kConfig.lengths != Lengths::dense) {
      store_shared_4(shared.slot(s) + 16, static_cast<u32>(tile.seq_q));
      store_shared_4(shared.slot(s) + 20, static_cast<u32>(tile.seq_k));
      store_shared_4(shared.slot(s) + 24, static_cast<u32>(tile.q_begin));
    }
    store_shared_4(shared.slot(s) + 28, static_cast<u32>(walk.whole));
    mbarrier_arrive(shared.tile_full(s));  // releases the stores to the consumers that wait for it
    slots.advance();
  }
  /// K of tile `block` of the keys, and which that is.
  __forceinline__ void load_k(int block) {
    const int s = static_cast<int>(rK.slot);
    mbarrier_wait(shared.k_empty(s), rK.parity ^ 1);
    store_shared_4(shared.listed(s), static_cast<u32>(block));
    mbarrier_expect(shared.k_full(s), Shared<kConfig>::kPlan.k_stage);
    this->load_rows(&args.k, shared.k(s), shared.k_full(s), Base::kPanels, block);
    rK.advance();
  }
  __forceinline__ void copy_tile(int index) {
    head_k = tile.head / args.group;
    const bool any = walk.listed > 0;
    int block = any ? walk.next() : 0;
    if (any) load_k(block);
    for (int w = 0; w < kConfig.warpgroups; ++w) load_q(w);
    for (int n = walk.listed - 1; n > 0; --n) {
      const int next = walk.next();
      load_k(next);
      load_v(block);
      block = next;
    }
    rQ.advance();
    asked = this->ask(index);
    if (any) load_v(block);
  }

  __forceinline__ void run() {
    tma_prefetch_map(&args.q);
    tma_prefetch_map(&args.k);
    tma_prefetch_map(&args.v);
    tma_prefetch_map(&args.o);
    this->claim_counter();
    Ring<2> slots;
    int index = static_cast<int>(blockIdx.x);
    while (index < args.tiles) {
      tile = this->tile_at(index);
      this->look_up_lengths();
      walk.start(lists<kConfig>(args), list_of<kConfig>(args, tile), tile.block);
      announce(slots);
      copy_tile(index);
      index = this->answer(asked);
    }
    tile.block = -1;
    announce(slots);
  }
};

}  // namespace tilewise::fwd_sm90
