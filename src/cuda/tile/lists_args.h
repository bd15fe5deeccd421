/// Block lists as kernels of tiles read them: made by tile_lists.
#pragma once

namespace tilewise::tile {

/// How much of a listed tile is listed: all of it, or what bits of blocks say, which are smaller
/// than the tile. none: there is no list.
enum class Lists : int { none, whole, parts };

/// Rows of tiles. Those of keys that a row block of queries sees, or those of queries that see a
/// block of keys. A row is 2 * words words: bit c of the first half is set where every pair of tile
/// c is seen, bit c of the second half where a mask has to tell which are. A map that tells has
/// both bits where position and lengths alone hide some: such a tile counts as one that a mask
/// cuts.
struct TileLists {
  const unsigned* bits = nullptr;  ///< (lists, rows, 2 * words)
  const int* counts = nullptr;     ///< (lists, rows, 2): tiles seen whole, through a mask
  int rows = 0, words = 0;
  int list_b = 0, list_h = 0;  ///< the list of (b, h) is b * list_b + h * list_h
  // parts: the caller's list, bit by bit. Blocks are of 2^shift_q queries and 2^shift_k keys.
  const unsigned* listed = nullptr;  ///< (lists, query_blocks, block_words): key blocks
  int query_blocks = 0, block_words = 0;
  int shift_q = 0, shift_k = 0;
  /// A map: of the first `shown_most` tiles of a row that a mask cuts, which pairs are seen. For
  /// each query the four words of mask_words(), of tiles of 128 keys.
  const unsigned* shown = nullptr;  ///< (lists, rows, shown_most, queries of a tile, 4)
  int shown_most = 0;
  // In which order rows are taken, those with many tiles first: class after class, and in each all
  // its rows for the first (b, h) that share a list, then for the next.
  const int* order = nullptr;    ///< (lists * tiles): list * tiles + tile
  const int* classes = nullptr;  ///< (kListClasses): rows of each
  int tiles = 0;                 ///< of a list: rows, or several rows each
  int sharing = 1;               ///< (b, h) that share a list
  int heads = 1;                 ///< query heads of an entry of the batch
  const int* taken = nullptr;    ///< may be null; not 0: a kernel before has done the work
};
/// Rows of at least 3 and 1.5 times the mean number of tiles, and the others.
inline constexpr int kListClasses = 3;

}  // namespace tilewise::tile
