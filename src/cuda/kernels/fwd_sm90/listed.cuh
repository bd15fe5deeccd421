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
