/// fwd_sm90: the consumer of a problem whose list's blocks are smaller than tiles. A tile is
/// several row blocks of 64 queries that list tiles of keys of their own, of which the producer
/// copies every one that some row block lists. A warpgroup has one row block or, each with its own
/// O, m and l in registers, several: it passes over what none of them lists, without a product, and
/// takes what is seen whole without a mask.
///
/// One row block's scores, softmax and values come one after the other; the other warpgroups use
/// the tensor cores meanwhile. What a product in flight would gain is less than a second P costs.
#pragma once

#include "cuda/kernels/fwd_sm90/consumer.cuh"
#include "cuda/tile/lists.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

/// A row block: the rows of warpgroup `warpgroup` of a tile, as they were without `held`.
template <Config kConfig>
struct RowBlock : Consumer<kConfig> {
  using Base = Consumer<kConfig>;
  static constexpr bool kSoftcap = kConfig.modification == Modification::softcap;

  bool begun = false;  ///< its rows have seen a tile of keys

  __forceinline__ RowBlock(const Args& a, u32 shared_base, int group)
      : Base(a, shared_base, group) {}

  __forceinline__ void enter(const Tile& at) {
    Base::tile = at;
    begun = false;
    Base::scores.m[0] = Base::scores.m[1] = -infinity();
    Base::scores.l[0] = Base::scores.l[1] = 0.0F;
#pragma unroll
    for (int i = 0; i < kConfig.head_dim_v / 2; ++i) Base::rO[i] = 0.0F;
  }

  /// P of the scores at hand, and O scaled by what the maxima moved.
  template <bool kMasked>
  __forceinline__ void search() {
    bool trusted = false;
    if constexpr (kSoftcap && kConfig.trusts_maxima() && !kMasked) {
      trusted = Base::scores.trusted_softcap(Base::args);
      if (!trusted) Base::scores.template apply_softcap<kMasked>(Base::args);
    } else {
      Base::template adjust_scores<kMasked>(0);
    }
    if (trusted) return;
    Base::scores.template softmax<false>(Base::args);
    Base::rescale_o();
  }
  /// The same where the maxima so far are trusted; K is still there when they may not be.
  __forceinline__ void trust() {
    Base::template adjust_scores<false>(0);
    bool searches =
        kConfig.expressions.score != 0 && Base::scores.outgrown > Base::scores.kMostOutgrown;
    // Rows that have seen nothing yet have no maximum to trust.
    if constexpr (kConfig.options.mask || kConfig.options.bias())
      searches |= __any_sync(
          ~0U, !(fmaxf(fabsf(Base::scores.m[0]), fabsf(Base::scores.m[1])) <= kHugeMaximum));
    if (!searches) {
      if (Base::scores.template trusted_softmax<Base::kScores>(Base::args)) return;
      recompute<kConfig>(Base::scores.rS,
                         Base::shared.q(static_cast<int>(Base::rQ.slot), Base::warpgroup),
                         Base::shared.k(static_cast<int>(Base::rK.slot)), Base::warp, Base::lane);
      Base::template adjust_scores<false>(0);
    }
    if constexpr (kConfig.expressions.score != 0) ++Base::scores.outgrown;
    Base::scores.template softmax<false, false>(Base::args);
    Base::scale_o();
  }

  /// The tile of keys at hand, which the rows see `seen` of.
  __forceinline__ void take(u32 seen) {
    const bool first = !begun;
    if (first) {
      Base::wait_q();
      Base::enter_tile();
      begun = true;
    }
    if (seen == kCut)
      Base::listed = listed_scores<kConfig>(Base::args, Base::tile,
                                            Base::group_query() + Base::warp * 16, Base::tile_k);
    // It passes over tiles: which one is next is not known.
    if constexpr (kConfig.options.mask) load_mask<kConfig>(*this, Base::tile_k, Base::scores.shown);
    if constexpr (kConfig.options.bias())
      bias_block<kConfig>(*this).load_async(pair_corner<kConfig>(*this, 0));
    Base::issue_scores();
    take_dropout<kConfig>(*this, 0);
    wgmma_wait<0>();
    pin(Base::scores.rS);
    if (seen == kCut) {
      search<true>();
    } else if (first || !kConfig.trusts_maxima() || kSoftcap) {
      search<false>();
    } else {
      trust();
    }
    Base::pack_p();
    if constexpr (!kOneRing<kConfig>) Base::wait_v();
    Base::issue_values();
    wgmma_wait<0>();
    pin(Base::rO);
    pin(Base::rP);
  }

  __forceinline__ void finish() {
    if (!begun) {
      Base::finish_empty_tile();
      return;
    }
    const Finished done{Base::tile, Base::group_query()};
    finish_rows<kConfig>(*this, done);
    store_o<kConfig>(*this, done, Base::shared.o(Base::warpgroup));
    Base::release_q();
  }
};

/// The row blocks of a warpgroup: every computing()-th, so that neighbours, whose lists are often
/// alike, are different warpgroups'.
template <Config kConfig, int kHeld = kConfig.shape.held>
struct RowBlocks;
template <Config kConfig>
struct RowBlocks<kConfig, 1> {
  RowBlock<kConfig> of[1];
  __forceinline__ RowBlocks(const Args& a, u32 base, int group) : of{{a, base, group}} {}
};
template <Config kConfig>
struct RowBlocks<kConfig, 2> {
  RowBlock<kConfig> of[2];
  __forceinline__ RowBlocks(const Args& a, u32 base, int group)
      : of{{a, base, group}, {a, base, group + kConfig.shape.computing()}} {}
};

template <Config kConfig>
struct ListConsumer : HeldOptions<kConfig.options.any()> {
  static constexpr int kHeld = kConfig.shape.held;
  static_assert(!kConfig.schedule.ping_pong,
                "a warpgroup that passes over a tile would have to take a turn");
  static_assert(kConfig.shape.warpgroups % kHeld == 0);
  const Captures* captures = nullptr;
  RowBlocks<kConfig> rows;

  __forceinline__ ListConsumer(const Args& a, u32 base, int group) : rows(a, base, group) {}

  template <class AnyArgs>
  __forceinline__ void hold(const AnyArgs& any) {
    captures = captures_of(any);
    if constexpr (kConfig.options.any()) this->options = options_of(any);
  }
  __forceinline__ void take_captures() {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      rows.of[i].scores.captures = captures;
      if constexpr (kConfig.options.any()) rows.of[i].scores.options = this->options;
    }
  }
  /// Every tile of keys that the producer copies, in its order.
  __forceinline__ void take_tiles() {
    RowBlock<kConfig>& one = rows.of[0];  // its rings are those of all
    bool last = false;
#pragma unroll 1
    while (!last) {
      one.wait_k();
      const u32 place = one.shared.listed(static_cast<int>(one.rK.slot));
      const SeenTile at{load_shared_4(place), load_shared_4(place + 4)};
      last = at.last();
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        RowBlock<kConfig>& row = rows.of[i];
        const u32 seen = at.seen_by(row.warpgroup);
        if (seen == kNothing) continue;
        row.rK = one.rK;
        row.rV = one.rV;
        row.tile_k = at.tile();
        row.take(seen);
      }
      if constexpr (!kOneRing<kConfig>)
        one.wait_v();  // not read by all, but what is given back must have landed
      __syncwarp();    // all lanes have read which tile it is
      one.release_k();
      if constexpr (kOneRing<kConfig>) {
        one.rV.advance();
      } else {
        one.release_v();
      }
    }
  }

  __forceinline__ void run() {
    take_captures();
    RowBlock<kConfig>& one = rows.of[0];
    one.fetch_tile();
    while (one.tile.block >= 0) {
      const Tile tile = one.tile;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) rows.of[i].enter(tile);
      if (one.blocks.end > 0) take_tiles();
#pragma unroll
      for (int i = 0; i < kHeld; ++i) rows.of[i].finish();
      one.fetch_tile();
    }
    if (one.thread == 0) bulk_wait_read();  // shared memory must outlive the copies out of it
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
