/// tile_lists: from a caller's block list to rows of tiles, each a bit: seen whole, seen through a
/// mask, or not at all. See tile_lists/README.md.
///
/// A warp takes one row of tiles of one list. It sets a bit for every listed block in shared
/// memory, where neither the order of the entries nor repeated ones can be told any more. An index
/// that names no block is passed over. Then each lane looks at tiles, one after another or by 32.
#pragma once

#include "cuda/kernels/tile_lists/row.cuh"

namespace tilewise::tile_lists {

using namespace tile;

/// Tiles of a row.
struct TileRange {
  int begin, end;
  /// Those among the 32 of a word.
  __forceinline__ unsigned bits(int word) const {
    const int from = max(begin - 32 * word, 0), to = min(end - 32 * word, 32);
    return from < to ? ~0U >> (32 - (to - from)) << from : 0;
  }
};
/// Tiles of 2^shift keys that `keys` of them need.
__forceinline__ int tiles_up(int keys, int shift) { return -(-keys >> shift); }

/// Tiles of a row, seen whole and cut.
struct Counts {
  int whole = 0, cut = 0;
  __forceinline__ void add_lanes() {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      whole += __shfl_xor_sync(~0U, whole, step);
      cut += __shfl_xor_sync(~0U, cut, step);
    }
  }
};

template <Config kConfig>
struct ListRow {
  static constexpr int kAtOnce = 4;  ///< entries of a lane whose loads are in flight together
  const Args& args;
  unsigned* const listed;  ///< bits of key blocks, block_words for each row of blocks
  unsigned* const full;
  const RowIndex at;
  int first_block, blocks;  ///< rows of blocks of the list: first, how many
  Lengths of;

  __forceinline__ ListRow(const Args& a, unsigned* memory, const RowIndex& index)
      : args(a),
        listed(memory),
        full(memory + block_rows(kConfig.tile_q, a.shift_q) * a.block_words),
        at(index) {
    const int batch = at.list / args.list_heads;
    first_block = at.row * kConfig.tile_q >> args.shift_q;
    blocks = min(block_rows(kConfig.tile_q, args.shift_q), args.query_blocks - first_block);
    of = lengths_of(args, batch);
  }

  /// An entry of the caller's list in row `b` of blocks.
  __forceinline__ void set(int b, int entry, int block) const {
    if (block < 0 || block >= args.key_blocks) return;
    const int word = b * args.block_words + block / 32;
    const unsigned bit = 1U << (block % 32);
    atomicOr(listed + word, bit);
    if (args.block_full != nullptr && args.block_full[entry * args.full_stride] != 0)
      atomicOr(full + word, bit);
  }
  /// The bits of what the caller lists.
  __forceinline__ void read_list(int lane) const {
    const int batch = at.list / args.list_heads, head = at.list - batch * args.list_heads;
    const int* offsets = args.row_offsets + batch * args.offsets_b + head * args.offsets_h;
    for (int b = 0; b < blocks; ++b) {
      const int begin = max(offsets[(first_block + b) * args.offsets_r], 0);
      const int end = min(offsets[(first_block + b + 1) * args.offsets_r], args.pairs);
#pragma unroll 1
      for (int i = begin + lane; i < end; i += 32 * kAtOnce) {
        int block[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const int entry = i + 32 * k;
          block[k] = entry < end ? args.block_index[entry * args.index_stride] : -1;
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) set(b, i + 32 * k, block[k]);
      }
    }
  }

  /// Whether tile `c` is seen at all, and whether without a mask.
  __forceinline__ void look_at(int c, bool& seen, bool& whole) const {
    const int first_key = c * kConfig.tile_k, end_key = first_key + kConfig.tile_k;
    const int first_row = at.row * kConfig.tile_q;
    const int last_row = min(first_row + kConfig.tile_q, of.queries) - 1;
    seen = whole = false;
    if (first_row > last_row || first_key >= of.keys || last_row + of.high <= first_key ||
        first_row + of.low >= min(end_key, of.keys))
      return;
    const bool uncut = first_row + of.high >= end_key && last_row + of.low <= first_key;
    const int first = first_key >> args.shift_k;
    const int last = min((end_key - 1) >> args.shift_k, (of.keys - 1) >> args.shift_k);
    bool all = true, plain = true;
    for (int b = 0; b < blocks; ++b) {
      for (int block = first; block <= last; ++block) {
        const int word = b * args.block_words + block / 32;
        const bool here = (listed[word] >> (block % 32) & 1) != 0;
        seen |= here;
        all &= here;
        plain &= (full[word] >> (block % 32) & 1) != 0;
      }
    }
    whole = all && (plain || (uncut && !args.function)) && end_key <= of.keys;
  }
  /// The row's bits: a lane looks at one tile after another.
  __forceinline__ Counts by_tiles(int lane, unsigned* bits) const {
    Counts counts;
    for (int word = 0; word < args.words; ++word) {
      bool seen, whole;
      look_at(word * 32 + lane, seen, whole);
      const unsigned in_whole = __ballot_sync(~0U, whole);
      const unsigned in_cut = __ballot_sync(~0U, seen && !whole);
      counts.whole += __popc(in_whole);
      counts.cut += __popc(in_cut);
      if (lane == 0) bits[word] = in_whole;
      if (lane == 1) bits[args.words + word] = in_cut;
    }
    return counts;
  }
  /// Whether a tile's keys are a block's, and the rows of a row of tiles are in one row of blocks.
  __forceinline__ bool is_of_tiles() const {
    return 1 << args.shift_k == kConfig.tile_k && block_rows(kConfig.tile_q, args.shift_q) == 1;
  }
  /// The same bits where a tile's keys are a block's: a lane takes 32 tiles.
  __forceinline__ Counts by_words(int lane, unsigned* bits) const {
    const int first_row = at.row * kConfig.tile_q, s = args.shift_k;
    const int end_row = min(first_row + kConfig.tile_q, of.queries);
    const int keys = first_row < end_row ? of.keys : 0;
    // A tile begins below what an end says, and ends above what a begin says.
    const TileRange seen{(first_row + of.low) >> s,
                         min(tiles_up(keys, s), tiles_up(end_row - 1 + of.high, s))};
    const TileRange uncut{tiles_up(end_row - 1 + of.low, s), (first_row + of.high) >> s};
    const TileRange inside{0, keys >> s};
    Counts counts;
    for (int word = lane; word < args.words; word += 32) {
      const unsigned here = listed[word] & (first_row + of.low < keys ? seen.bits(word) : 0);
      const unsigned plain = full[word] | (args.function ? 0 : uncut.bits(word));
      const unsigned whole = here & plain & inside.bits(word);
      bits[word] = whole;
      bits[args.words + word] = here & ~whole;
      counts.whole += __popc(whole);
      counts.cut += __popc(here & ~whole);
    }
    counts.add_lanes();
    return counts;
  }
};

template <Config kConfig>
__forceinline__ void from_list(const Args& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int nth = static_cast<int>(blockIdx.x) * kConfig.rows + warp;
  let_next_start();
  if (nth >= args.all_rows) return;
  const int all = 2 * block_rows(kConfig.tile_q, args.shift_q) * args.block_words;
  unsigned* of_blocks = reinterpret_cast<unsigned*>(memory) + warp * all;
  const ListRow<kConfig> row(args, of_blocks, RowIndex::of(nth, args.rows));
  for (int i = lane; i < all; i += 32) of_blocks[i] = 0;
  __syncwarp();  // all bits are 0
  row.read_list(lane);
  __syncwarp();  // and those of the list are set
  unsigned* bits = args.bits + static_cast<i64>(nth) * 2 * args.words;
  const Counts counts = row.is_of_tiles() ? row.by_words(lane, bits) : row.by_tiles(lane, bits);
  if (lane < 2)
    args.counts[static_cast<i64>(nth) * 2 + lane] = lane == 0 ? counts.whole : counts.cut;
  if constexpr (kConfig.parts) {
    unsigned* to =
        args.listed +
        (static_cast<i64>(row.at.list) * args.query_blocks + row.first_block) * args.block_words;
    // Where a block has the rows of several tiles each of them writes the same.
    for (int i = lane; i < row.blocks * args.block_words; i += 32) to[i] = row.listed[i];
  }
}

}  // namespace tilewise::tile_lists
