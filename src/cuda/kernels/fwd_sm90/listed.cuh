/// fwd_sm90: a problem's block list: which a tile's is, what of a tile of keys it shows.
#pragma once

#include "cuda/kernels/fwd_sm90/shared.cuh"

namespace tilewise::fwd_sm90 {

using namespace tile;

template <Config kConfig>
inline constexpr bool kListed = kConfig.lists != Lists::none;
template <Config kConfig>
__forceinline__ const TileLists& lists(const Args& args) {
  static_assert(kListed<kConfig>);
  return static_cast<const ListArgs&>(args).lists;
}
/// parts: K and V of a tile of keys come and go together, behind the barriers of K. Where there are
/// fewer stages of V they do not.
template <Config kConfig>
inline constexpr bool kOneRing = kConfig.shape.stages == kConfig.shape.value_stages;
/// The list of a tile's head.
template <Config kConfig>
__forceinline__ int list_of(const Args& args, const Tile& tile) {
  const TileLists& of = lists<kConfig>(args);
  return tile.batch * of.list_b + tile.head * of.list_h;
}

/// What a consumer holds of a map's cut tiles.
template <bool kAny>
struct HeldCut {
  __forceinline__ bool knows_cut() const { return false; }
};
template <>
struct HeldCut<true> {
  u32 cut[2],
      cut_coming[2];       ///< of the thread's rows what is seen, a bit a score; of the one after
  bool cut_known = false;  ///< it is known of the block at hand

  /// Whether mask, position and lengths are known as bits of the block. A vote, though all lanes
  /// agree: see Scores::add_alibi().
  __forceinline__ bool knows_cut() const { return __any_sync(~0U, cut_known); }
  /// Hidden scores become -inf, by those bits.
  template <int kScores>
  __forceinline__ void hide_cut(float (&S)[kScores]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        if ((cut[r] >> i & 1) == 0) S[4 * (i / 2) + 2 * r + i % 2] = -infinity();
      }
    }
  }
};

/// Which tile of keys has come to the stage of a consumer, before that is released, and beside a
/// mask the one after it. Those of Lists::parts are taken by ListConsumer.
template <Config kConfig, class Consumer>
__forceinline__ void take_listed(Consumer& c) {
  if constexpr (kConfig.lists == Lists::whole) {
    c.wait_k();
    const u32 at = c.shared.listed(static_cast<int>(c.rK.slot));
    c.tile_k = static_cast<int>(load_shared_4(at));
    if constexpr (kConfig.options.mask) c.next_tile_k = static_cast<int>(load_shared_4(at + 4));
  }
}

/// Asks for what the thread's rows see of cut tile number `rank` of the tile's list, where it is
/// known. A branch by a vote: see Scores::add_alibi().
template <Config kConfig, class Consumer>
__forceinline__ void load_cut(const Consumer& c, int rank, u32 (&words)[2]) {
  const TileLists& of = lists<kConfig>(c.args);
  if (!__any_sync(~0U, rank >= 0 && rank < of.shown_most)) return;
  constexpr int kRows = 64 * kConfig.shape.warpgroups, kWords = 4;
  const i64 row = static_cast<i64>(list_of<kConfig>(c.args, c.tile)) * of.rows + c.tile.block;
  const unsigned* const first = of.shown + (row * of.shown_most + rank) * (kRows * kWords) +
                                (64 * c.warpgroup + 16 * c.warp + c.lane / 4) * kWords + c.lane % 4;
  words[0] = load_global_early(first);
  words[1] = load_global_early(first + 8 * kWords);
}
/// The block at hand is cut: what is seen of it, ahead of its products. It has been asked for a
/// block ahead, as what a bool mask shows.
template <Config kConfig, class Consumer>
__forceinline__ void take_cut(Consumer& c) {
  if constexpr (kConfig.shows_cut()) {
    const int rank =
        static_cast<int>(load_shared_4(c.shared.listed(static_cast<int>(c.rK.slot)) + 8));
    c.scores.cut_known = rank < lists<kConfig>(c.args).shown_most;
    c.scores.cut[0] = c.scores.cut_coming[0], c.scores.cut[1] = c.scores.cut_coming[1];
    load_cut<kConfig>(c, rank - 1, c.scores.cut_coming);
  }
}
/// The same of a tile's first block, which may be seen whole.
template <Config kConfig, class Consumer>
__forceinline__ void take_first_cut(Consumer& c) {
  if constexpr (kConfig.shows_cut()) {
    const int rank =
        static_cast<int>(load_shared_4(c.shared.listed(static_cast<int>(c.rK.slot)) + 8));
    load_cut<kConfig>(c, rank, c.scores.cut_coming);
    take_cut<kConfig>(c);
  }
}

/// What the 16 rows of a warp, which begin at `query`, list of tile `tile_k` of the keys: a bit for
/// each of a row's scores in a thread, four for 16 keys. They are rows of one block of queries.
template <Config kConfig>
__forceinline__ u32 listed_scores(const Args& args, const Tile& tile, int query, int tile_k) {
  const TileLists& of = lists<kConfig>(args);
  // Rows past the end keep nothing: any block serves.
  const int block_q = min(query >> of.shift_q, of.query_blocks - 1);
  const int first = (tile_k * kConfig.shape.block_n) >> of.shift_k;
  const i64 row = static_cast<i64>(list_of<kConfig>(args, tile)) * of.query_blocks + block_q;
  const u32 bits = of.listed[row * of.block_words + first / 32] >> (first % 32);
  u32 listed = 0;
#pragma unroll
  for (int c = 0; c < kConfig.shape.block_n / 16; ++c)
    listed |= (bits >> (c * 16 >> of.shift_k) & 1U) * (0xfU << (4 * c));
  return listed;
}

}  // namespace tilewise::fwd_sm90
