/// tile_lists: constants and parameters. See tile_lists/README.md.
#pragma once

#include "cuda/tile/expression_args.h"
#include "cuda/tile/options_args.h"
#include "cuda/tile/sequences_args.h"

namespace tilewise::tile_lists {

/// What the three kernels that make rows of tiles are compiled for.
struct Config {
  int tile_q = 128;  ///< queries of a tile; from_function: a power of two
  int tile_k = 128;  ///< keys of a tile; from_function: 16 or a multiple of 32
  /// from_list: blocks are smaller than tiles, the list is kept bit by bit. order: a tile has
  /// several rows.
  bool parts = false;
  bool by_keys = false;  ///< from_mask: rows of tiles are of keys, and so are the mask's lines
  /// from_function, transpose: rows tell which tiles position and lengths alone cut.
  bool tells_placed = false;
  int rows = 4;                                             ///< from_list: of a block, a warp each
  int shared_bytes = 1024;                                  ///< a power of two
  tile::Expressions expressions = {.score = 0, .mask = 1};  ///< from_function

  bool operator==(const Config&) const = default;
};

/// from_list, and what kernels without the caller's list take of it.
struct Args {
  // The caller's list; strides count elements.
  const int* row_offsets = nullptr;  ///< (B|1, Hq|1, query_blocks + 1)
  long long offsets_b = 0, offsets_h = 0, offsets_r = 1;
  const int* block_index = nullptr;
  long long index_stride = 1;
  const unsigned char* block_full = nullptr;  ///< may be null
  long long full_stride = 1;
  bool function = false;  ///< a mask function cuts every block that is not full
  int pairs = 0;          ///< of block_index
  int shift_q = 7, shift_k = 7;
  int query_blocks = 0, key_blocks = 0;
  // What hides pairs beside the list: row i sees the keys j with i + low <= j < min(i + high,
  // keys). With lengths from the device low and high are without Sk - Sq, and high is at most top.
  int seq_q = 0, seq_k = 0, low = 0, high = 0, top = 0;
  const int* key_lengths = nullptr;  ///< (B), may be null
  long long key_lengths_b = 0;
  /// Packed: with offsets, lists of each sequence. Keys may have key_lengths then.
  tile::Sequences queries, keys;
  // What is made: see tile/lists_args.h.
  int list_heads = 1;  ///< lists of a batch entry
  int rows = 0, words = 0, block_words = 0;
  int all_rows = 0;  ///< of all lists
  unsigned* bits = nullptr;
  int* counts = nullptr;
  unsigned* listed = nullptr;  ///< parts only
};

/// from_function without the caller's list.
struct FunctionArgs : Args {
  const int* taken = nullptr;  ///< of tile::TileLists
};

/// from_mask.
struct MaskArgs {
  /// Without the caller's list. Rows, words, bits and counts are those of the rows at hand.
  Args of;
  tile::MaskBits mask;
  bool listed = false;  ///< the rows are there already, and lose what the mask hides
};

inline constexpr int kFunctionThreads = 512, kMaskThreads = 512;
/// Words of shared memory before the bits of from_function and from_mask: two counts.
inline constexpr int kCountWords = 4;
/// Shared memory of from_function and from_mask: two counts, then two bits for each tile of a row.
constexpr long long row_bytes(long long words) { return 4 * (kCountWords + 2 * words); }
/// Rows of blocks that a row of tiles takes, and what from_list has for their bits.
constexpr int block_rows(int tile_q, int shift_q) {
  return tile_q >> shift_q > 1 ? tile_q >> shift_q : 1;
}
constexpr long long list_bytes(int tile_q, int shift_q, long long block_words) {
  return 4 * 2LL * block_rows(tile_q, shift_q) * block_words;
}

/// transpose: rows of tiles the other way round.
struct TransposeArgs {
  const unsigned* bits = nullptr;  ///< (lists, rows, 2 * words)
  int rows = 0, words = 0;
  unsigned* to_bits = nullptr;  ///< (lists, to_rows, 2 * to_words)
  int* to_counts = nullptr;     ///< (lists, to_rows, 2)
  int to_rows = 0, to_words = 0;
};
inline constexpr int kTransposeThreads = 64;

/// order: in which order rows are taken.
struct OrderArgs {
  const int* counts = nullptr;  ///< (lists, rows, 2)
  int entries = 0;              ///< lists * tiles, below 2^kClassBits
  int rows = 0, tiles = 0;      ///< of a list
  int rows_of_tile = 1;
  int* order = nullptr;    ///< (entries)
  int* classes = nullptr;  ///< (tile::kListClasses)
  static constexpr int kClassBits = 21;
};
inline constexpr int kOrderThreads = 512;
/// Shared memory of order: a word for each of its warps.
inline constexpr int kOrderBytes = 8 * kOrderThreads / 32;

/// cut_bits: the order, and what of the first `most` cut tiles of each row is seen.
struct CutBitsArgs {
  FunctionArgs of;
  OrderArgs order;
  int most = 0;
  unsigned* shown = nullptr;  ///< see tile/lists_args.h
};
/// Blocks of cut_bits that share a row.
inline constexpr int kCutBlocks = 4;

}  // namespace tilewise::tile_lists
