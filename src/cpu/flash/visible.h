/// The keys of a tile of scores, by position, lengths, mask and block list.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/flash/tile_place.h"
#include "problem/problem.h"

namespace tilewise::cpu {

/// How much of its keys a tile sees.
enum class Visibility : std::uint8_t { none, some, all };
Visibility tile_visibility(const Problem& p, const TilePlace& at);

/// True when more than position, length and list may hide a pair.
inline bool has_element_mask(const Problem& p) {
  return p.mask.defined() || p.mask_function.defined();
}

/// True when a tile of which some is visible hides nothing but by position and length.
bool position_alone_hides(const Problem& p, const TilePlace& at);

/// Query rows i0 .. i0 + rows - 1 of heads h .. h + heads - 1 of batch entry b.
struct QueryRows {
  std::int64_t b = 0, h = 0, i0 = 0, rows = 0, heads = 1;
};

/// The first key of `within` that one of the rows lists; within.end if there is none. Without a
/// list: within.begin.
std::int64_t first_listed(const Problem& p, const QueryRows& rows, KeyRange within);

/// The first run of keys of `within` that one of the rows lists. It begins at a multiple of `step`
/// or at within.begin, and the next one in {end, within.end} begins in another step. Without a
/// list: all of `within`.
KeyRange next_listed(const Problem& p, const QueryRows& rows, KeyRange within, std::int64_t step);

/// Number of keys that row i of a head sees by position, length and list; at most `most`.
std::int64_t keys_seen(const Problem& p, const TilePlace& at, std::int64_t i, std::int64_t most);

/// How an axis is cut into tiles: at most `most` long and, where blocks of a list are at least
/// `least` long, none with elements of two blocks.
class Cuts {
 public:
  /// `block` 0: no list. A block longer than `most` is cut at multiples of `step`.
  Cuts(std::int64_t length, std::int64_t most, std::int64_t block, std::int64_t least,
       std::int64_t step);
  std::int64_t count() const { return count_; }
  /// Half open; the last ones may end, or begin, past the length.
  KeyRange at(std::int64_t n) const;

 private:
  std::int64_t block_, parts_, chunk_, count_;
};

/// The query blocks that list each key block of each head, ascending: the list by columns, for
/// passes over keys. Empty without a list.
class ListedColumns {
 public:
  explicit ListedColumns(const Problem& p);
  /// Runs of rows of head h, ascending, where one of keys j0 .. j0 + keys - 1 is listed: within
  /// `rows`, begun at a multiple of `step`, each in other steps than the one before. Without a
  /// list: `rows`.
  std::vector<KeyRange> runs(std::int64_t b, std::int64_t h, std::int64_t j0, std::int64_t keys,
                             KeyRange rows, std::int64_t step) const;

 private:
  /// The index of the list of (b, h).
  std::int64_t list_of(std::int64_t b, std::int64_t h) const;

  const Problem& p_;
  std::int64_t batches_ = 0, heads_ = 0, key_blocks_ = 0;
  std::vector<std::int64_t> offsets_;       ///< (lists, key_blocks + 1)
  std::vector<std::int32_t> query_blocks_;  ///< an entry each
};

}  // namespace tilewise::cpu
