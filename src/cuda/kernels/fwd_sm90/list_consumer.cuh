/// fwd_sm90: the consumer of a problem whose list's blocks are smaller than tiles. The rows of each
/// warpgroup list tiles of keys of their own: it passes over the others, without a product, and
/// takes those seen whole without a mask.
#pragma once

#include "cuda/kernels/fwd_sm90/consumer.cuh"
#include "cuda/tile/lists.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

template <Config kConfig>
struct ListConsumer : Consumer<kConfig> {
  using Base = Consumer<kConfig>;
  using Base::args, Base::blocks, Base::listed, Base::rK, Base::rO, Base::rQ;
  using Base::fetch_tile, Base::finish_values, Base::group_query, Base::issue_scores;
  using Base::issue_values, Base::pack_p, Base::release_k, Base::release_q, Base::release_v;
  using Base::shared, Base::thread, Base::tile, Base::tile_k, Base::warp, Base::warpgroup;
  using Base::wait_k, Base::wait_q, Base::wait_v;
  static_assert(!kConfig.ping_pong,
                "a warpgroup that passes over a tile would have to take a turn");

  /// Tiles that are passed over before V of the one whose P is at hand is released. More would
  /// leave the producer no place for V, and this no K.
  static constexpr int kMostPassed = kConfig.value_stages - 1;

  u32 seen = kNothing;  ///< what the tile at hand is to the rows
  bool last = false;
  int passed = 0;  ///< tiles whose V is still to be released

  using Base::Base;

  __forceinline__ void take() {
    wait_k();
    const SeenTile at{load_shared_4(shared.listed(static_cast<int>(rK.slot)))};
    tile_k = at.tile();
    seen = at.seen_by(warpgroup);
    last = at.last();
  }
  /// What of the tile at hand the warp's rows list.
  __forceinline__ void take_listed_scores() {
    listed = seen == kNothing
                 ? 0
                 : listed_scores<kConfig>(args, tile, group_query() + warp * 16, tile_k);
  }
  __forceinline__ void pass_over() {
    __syncwarp();  // all lanes have read which tile it is
    release_k();
    ++passed;
  }
  __forceinline__ void release_passed() {
    for (; passed > 0; --passed) {
      wait_v();
      release_v();
    }
  }
  /// To the first tile that the rows list; false when there is none.
  __forceinline__ bool find_first() {
    if (blocks.end == 0) return false;
    while (true) {
      take();
      if (seen != kNothing) return true;
      pass_over();
      if (last || passed > kMostPassed) release_passed();
      if (last) return false;
    }
  }

  /// From the finished scores of the first tile to P of the last.
  __forceinline__ void process_tiles() {
#pragma unroll
    for (int i = 0; i < kConfig.head_dim_v / 2; ++i) rO[i] = 0.0F;
    if (seen == kCut) {
      take_listed_scores();
      Base::template adjust_scores<true>(0);
    } else {
      Base::template adjust_scores<false>(0);
    }
    Base::template softmax<true>(args);
    pack_p();
#pragma unroll 1
    while (!last) {
      take();
      if (seen == kNothing && passed < kMostPassed) {
        pass_over();
        continue;
      }
      if (seen == kWhole) {
        Base::template step<false>(0);
      } else {
        take_listed_scores();
        Base::template step<true>(0);
      }
      release_passed();
    }
  }

  __forceinline__ void run() {
    fetch_tile();
    while (tile.block >= 0) {
      if (!find_first()) {
        Base::finish_empty_tile();
        fetch_tile();
        continue;
      }
      wait_q();
      take_options<kConfig>(*this, 0);
      issue_scores();
      Base::first_scores_wait();
      release_passed();
      Base::enter_tile();
      process_tiles();
      if constexpr (kConfig.own_o) release_q();
      const Finished done{tile, group_query()};
      wait_v();
      issue_values();
      Base::finish_rows(done);
      finish_values();
      release_passed();
      Base::store_o(done);
      if constexpr (!kConfig.own_o) release_q();
      fetch_tile();
    }
    if (thread == 0) bulk_wait_read();  // shared memory must outlive the copies out of it
  }
};

template <Config kConfig>
struct ConsumerType {
  using Type = Consumer<kConfig>;
};
template <Config kConfig>
requires(kConfig.lists == Lists::parts) struct ConsumerType<kConfig> {
  using Type = ListConsumer<kConfig>;
};
template <Config kConfig>
using ConsumerOf = typename ConsumerType<kConfig>::Type;

}  // namespace tilewise::fwd_sm90
