/// tile_lists: from a caller's block list to rows of tiles, each a bit: seen whole, seen through a
/// mask, or not at all. See tile_lists/README.md.
///
/// A warp takes one row of tiles of one list. It sets a bit for every listed block in shared
/// memory, where neither the order of the entries nor repeated ones can be told any more. An index
/// that names no block is passed over. Then each lane looks at one tile after another.
#pragma once

#include "cuda/kernels/tile_lists/row.cuh"

namespace tilewise::tile_lists {

using namespace tile;

template <Config kConfig>
struct ListRow {
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

  /// The bits of what the caller lists.
  __forceinline__ void read_list(int lane) const {
    const int batch = at.list / args.list_heads, head = at.list - batch * args.list_heads;
    const int* offsets = args.row_offsets + batch * args.offsets_b + head * args.offsets_h;
    for (int b = 0; b < blocks; ++b) {
      const int begin = max(offsets[(first_block + b) * args.offsets_r], 0);
      const int end = min(offsets[(first_block + b + 1) * args.offsets_r], args.pairs);
      for (int i = begin + lane; i < end; i += 32) {
        const int block = args.block_index[i * args.index_stride];
        if (block < 0 || block >= args.key_blocks) continue;
        const int word = b * args.block_words + block / 32;
        const unsigned bit = 1U << (block % 32);
        atomicOr(listed + word, bit);
        if (args.block_full != nullptr && args.block_full[i * args.full_stride] != 0)
          atomicOr(full + word, bit);
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
  int whole_count = 0, cut_count = 0;
  for (int word = 0; word < args.words; ++word) {
    bool seen, whole;
    row.look_at(word * 32 + lane, seen, whole);
    const unsigned in_whole = __ballot_sync(~0U, whole);
    const unsigned in_cut = __ballot_sync(~0U, seen && !whole);
    whole_count += __popc(in_whole);
    cut_count += __popc(in_cut);
    if (lane == 0) bits[word] = in_whole;
    if (lane == 1) bits[args.words + word] = in_cut;
  }
  if (lane < 2) args.counts[static_cast<i64>(nth) * 2 + lane] = lane == 0 ? whole_count : cut_count;
  if constexpr (kConfig.parts) {
    unsigned* to =
        args.listed +
        (static_cast<i64>(row.at.list) * args.query_blocks + row.first_block) * args.block_words;
    // Where a block has the rows of several tiles each of them writes the same.
    for (int i = lane; i < row.blocks * args.block_words; i += 32) to[i] = row.listed[i];
  }
}

}  // namespace tilewise::tile_lists
