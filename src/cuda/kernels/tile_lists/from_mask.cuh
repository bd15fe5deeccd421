/// tile_lists: from the bits of a bool mask (rows/mask_bits) to rows of tiles, each a bit: seen
/// whole, seen through the mask, or not at all. Rows that are there already lose what the mask
/// hides. See tile_lists/README.md.
///
/// One block takes one row of tiles of one list. A lane has a tile of its own, so that a warp reads
/// what 32 tiles have of a line side by side; the warps share the lines.
#pragma once

#include "cuda/kernels/tile_lists/row.cuh"
#include "cuda/tile/options.cuh"

namespace tilewise::tile_lists {

using namespace tile;

template <Config kConfig>
struct MaskRow {
  static constexpr int kLines = kConfig.by_keys ? kConfig.tile_k : kConfig.tile_q;
  static constexpr int kElements = kConfig.by_keys ? kConfig.tile_q : kConfig.tile_k;
  static constexpr int kWarps = kMaskThreads / 32;
  const MaskArgs& args;
  const int batch, head, row, lane, warp;
  Lengths of;
  int begin = 0;                    ///< of the entry's lines among those of the mask
  int first_line, lines, elements;  ///< lines of the tile

  __forceinline__ MaskRow(const MaskArgs& a, const RowIndex& at, int thread)
      : args(a),
        batch(at.list / a.of.list_heads),
        head(at.list - batch * a.of.list_heads),
        row(at.row),
        lane(thread % 32),
        warp(thread / 32),
        of(lengths_of(a.of, batch)),
        first_line(at.row * kLines) {
    const int all = kConfig.by_keys ? of.keys : of.queries;
    lines = max(min(kLines, all - first_line), 0);
    elements = kConfig.by_keys ? of.queries : of.keys;
    if (!kConfig.by_keys && a.of.queries.offsets != nullptr)
      begin = sequence_at(a.of.queries, batch).begin;
  }

  /// What the mask shows and hides of 32 tiles from `first` on: a bit each, for all lanes. One
  /// warp's lines.
  __forceinline__ void look_at(int first, u32& shown, u32& hidden) const {
    const int tile = first + lane;
    const int count = min(elements - tile * kElements, kElements);
    u32 any = 0, all = ~0U;
    if (count > 0) {
      u32 valid[4];  // past the end every element counts as shown
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const int c = max(count - 2 * t, 0);
        valid[t] = bit_mask(0, static_cast<u32>(c / 8 * 2 + min(c % 8, 2)));
      }
      // A mask that broadcasts along the lines has one.
      const int end = args.mask.stride_line == 0 ? min(lines, 1) : lines;
#pragma unroll 8
      for (int line = warp; line < end; line += kWarps) {
        const Bytes16 x =
            load_global_16(mask_words(args.mask, batch, head, begin + first_line + line, tile));
        const u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          any |= words[t] & valid[t];
          all &= words[t] | ~valid[t];
        }
      }
    }
    shown = __ballot_sync(~0U, any != 0);
    hidden = __ballot_sync(~0U, all != ~0U);
  }

  /// Whether position shows a pair of a tile, and whether it shows all of them.
  __forceinline__ void look_at_position(int tile, bool& seen, bool& whole) const {
    const int first_query = (kConfig.by_keys ? tile : row) * kConfig.tile_q;
    const int first_key = (kConfig.by_keys ? row : tile) * kConfig.tile_k;
    const int last_query = min(first_query + kConfig.tile_q, of.queries) - 1;
    const int end_key = first_key + kConfig.tile_k;
    seen = first_query <= last_query && first_key < of.keys && last_query + of.high > first_key &&
           first_query + of.low < min(end_key, of.keys);
    whole = seen && end_key <= of.keys && first_query + of.high >= end_key &&
            last_query + of.low <= first_key;
  }
};

template <Config kConfig>
__forceinline__ void from_mask(const MaskArgs& args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr int kWarps = MaskRow<kConfig>::kWarps;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int words = args.of.words;
  const RowIndex index = RowIndex::of_block(args.of.rows);
  unsigned* counts = reinterpret_cast<unsigned*>(memory);
  unsigned* shown = counts + kCountWords;
  unsigned* hidden = shown + words;
  let_next_start();
  for (int i = thread; i < kCountWords + 2 * words; i += kMaskThreads) counts[i] = 0;
  wait_for_previous();  // for the bits of the mask, and for rows that are there
  __syncthreads();      // all bits are 0
  const MaskRow<kConfig> row(args, index, thread);
  for (int word = 0; word < words; ++word) {
    u32 shows, hides;
    row.look_at(32 * word, shows, hides);
    if (lane != 0) continue;
    if (shows != 0) atomicOr(shown + word, shows);
    if (hides != 0) atomicOr(hidden + word, hides);
  }
  __syncthreads();  // all lines have been looked at
  unsigned* bits = args.of.bits + index.at(args.of.rows) * 2 * words;
  for (int word = warp; word < words; word += kWarps) {
    bool seen, whole;
    if (args.listed) {
      whole = (bits[word] >> lane & 1) != 0;
      seen = whole || (bits[words + word] >> lane & 1) != 0;
    } else {
      row.look_at_position(32 * word + lane, seen, whole);
    }
    seen = seen && (shown[word] >> lane & 1) != 0;
    whole = whole && (hidden[word] >> lane & 1) == 0;
    const unsigned in_whole = __ballot_sync(~0U, seen && whole);
    const unsigned in_cut = __ballot_sync(~0U, seen && !whole);
    if (lane != 0) continue;
    bits[word] = in_whole;
    bits[words + word] = in_cut;
    atomicAdd(counts, static_cast<unsigned>(__popc(in_whole)));
    atomicAdd(counts + 1, static_cast<unsigned>(__popc(in_cut)));
  }
  __syncthreads();  // all warps have counted
  store_counts(args.of, index.at(args.of.rows), counts);
}

}  // namespace tilewise::tile_lists
