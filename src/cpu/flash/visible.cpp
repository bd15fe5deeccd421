#include "cpu/flash/visible.h"

#include <algorithm>

#include "problem/blocks.h"
#include "problem/listed_blocks.h"

namespace tilewise::cpu {
namespace {

/// use(row) for the rows of the list that the query rows have, until it returns false.
template <class Use>
bool all_of_listed(const Problem& p, const QueryRows& q, const Use& use) {
  const BlockList& list = p.block_list;
  const std::int64_t last = (q.i0 + q.rows - 1) / list.block_q;
  // One head is enough if heads share a list.
  const std::int64_t heads = list.row_offsets.strides[1] == 0 ? 1 : q.heads;
  for (std::int64_t h = q.h; h < q.h + heads; ++h) {
    for (std::int64_t block = q.i0 / list.block_q; block <= last; ++block) {
      if (!use(ListedBlocks(list, q.b, h, block))) return false;
    }
  }
  return true;
}

/// True when the query rows have one row of the list.
bool have_one_row(const Problem& p, const QueryRows& q) {
  const BlockList& list = p.block_list;
  const bool one_block = q.i0 / list.block_q == (q.i0 + q.rows - 1) / list.block_q;
  return one_block && (q.heads == 1 || list.row_offsets.strides[1] == 0);
}

QueryRows rows_of(const TilePlace& at) { return {at.b, at.h, at.i0, at.rows, 1}; }

/// What the list says of a tile.
struct Listed {
  bool any = false;   ///< one of its pairs is listed
  bool every = true;  ///< all are
  bool full = true;   ///< all are, in blocks that need no element mask
};

Listed listed_of(const Problem& p, const TilePlace& at) {
  Listed tile;
  const std::int64_t first = at.j0 / p.block_list.block_k;
  const std::int64_t last = (at.j0 + at.cols - 1) / p.block_list.block_k;
  all_of_listed(p, rows_of(at), [&](const ListedBlocks& row) {
    const std::int64_t from = row.first_from(first);
    std::int64_t n = from;
    for (; n < row.count() && row.block(n) <= last; ++n) tile.full = tile.full && row.full(n);
    tile.any = tile.any || n > from;
    tile.every = tile.every && n - from == last - first + 1;
    return true;
  });
  tile.full = tile.full && tile.every;
  return tile;
}

/// next_listed() of one row: entries that ascend are passed once.
KeyRange next_of_row(const ListedBlocks& row, std::int64_t block_k, KeyRange within,
                     std::int64_t step) {
  std::int64_t n = row.first_from(within.begin / block_k);
  if (n == row.count() || row.block(n) * block_k >= within.end) return {within.end, within.end};
  const std::int64_t first = std::max(within.begin, row.block(n) * block_k);
  KeyRange run{std::max(within.begin, first / step * step), (row.block(n) + 1) * block_k};
  for (++n; n < row.count() && run.end < within.end; ++n) {
    const std::int64_t begin = row.block(n) * block_k;
    if (begin > run.end && begin >= round_up(run.end, step)) break;
    run.end = begin + block_k;
  }
  run.end = std::min(run.end, within.end);
  return run;
}

Visibility position_visibility(const Problem& p, const TilePlace& at) {
  // Both ends of the visible range move to the right with i, so the first and last row decide.
  const KeyRange first = p.visible_keys(at.sequence, at.i0);
  const KeyRange last = p.visible_keys(at.sequence, at.i0 + at.rows - 1);
  if (last.end <= at.j0 || first.begin >= at.j0 + at.cols) return Visibility::none;
  const bool all = first.end >= at.j0 + at.cols && last.begin <= at.j0;
  return all ? Visibility::all : Visibility::some;
}

}  // namespace

Visibility tile_visibility(const Problem& p, const TilePlace& at) {
  const Visibility position = position_visibility(p, at);
  if (position == Visibility::none) return position;
  if (p.block_list.defined()) {
    const Listed listed = listed_of(p, at);
    if (!listed.any) return Visibility::none;
    if (listed.full) return Visibility::all;
    if (!listed.every) return Visibility::some;
  }
  return has_element_mask(p) ? Visibility::some : position;
}

bool position_alone_hides(const Problem& p, const TilePlace& at) {
  return !has_element_mask(p) && (!p.block_list.defined() || listed_of(p, at).every);
}

std::int64_t first_listed(const Problem& p, const QueryRows& rows, KeyRange within) {
  if (!p.block_list.defined() || within.empty()) return within.begin;
  const std::int64_t block_k = p.block_list.block_k;
  std::int64_t first = within.end;
  all_of_listed(p, rows, [&](const ListedBlocks& row) {
    const std::int64_t n = row.first_from(within.begin / block_k);
    if (n < row.count()) first = std::min(first, row.block(n) * block_k);
    return first > within.begin;
  });
  return std::max(first, within.begin);
}

KeyRange next_listed(const Problem& p, const QueryRows& rows, KeyRange within, std::int64_t step) {
  if (!p.block_list.defined() || within.empty()) return within;
  const std::int64_t block_k = p.block_list.block_k;
  if (have_one_row(p, rows)) {
    return next_of_row(ListedBlocks(p.block_list, rows.b, rows.h, rows.i0 / p.block_list.block_q),
                       block_k, within, step);
  }
  const std::int64_t first = first_listed(p, rows, within);
  if (first >= within.end) return {within.end, within.end};
  KeyRange run{std::max(within.begin, first / step * step), first + 1};
  for (bool grown = true; grown && run.end < within.end;) {
    grown = false;
    all_of_listed(p, rows, [&](const ListedBlocks& row) {
      for (std::int64_t n = row.first_from(run.end / block_k); n < row.count(); ++n) {
        const std::int64_t begin = row.block(n) * block_k;
        const bool joins = begin <= run.end || begin < round_up(run.end, step);
        if (!joins || run.end >= within.end) break;
        run.end = begin + block_k;
        grown = true;
      }
      return run.end < within.end;
    });
  }
  run.end = std::min(run.end, within.end);
  return run;
}

std::int64_t keys_seen(const Problem& p, const TilePlace& at, std::int64_t i, std::int64_t most) {
  const KeyRange range = p.visible_keys(at.sequence, i);
  if (!p.block_list.defined()) return std::min(most, range.end - range.begin);
  const std::int64_t block_k = p.block_list.block_k;
  const ListedBlocks row(p.block_list, at.b, at.h, i / p.block_list.block_q);
  std::int64_t keys = 0;
  for (std::int64_t n = row.first_from(range.begin / block_k); n < row.count() && keys < most;
       ++n) {
    const std::int64_t begin = row.block(n) * block_k;
    if (begin >= range.end) break;
    keys += std::min(range.end, begin + block_k) - std::max(range.begin, begin);
  }
  return std::min(most, keys);
}

Cuts::Cuts(std::int64_t length, std::int64_t most, std::int64_t block, std::int64_t least,
           std::int64_t step) {
  block_ = most;
  parts_ = 1;
  chunk_ = most;
  if (block > 0) {
    block = std::min(block, std::max<std::int64_t>(length, 1));
    block_ = block;
    if (block > most) {
      chunk_ = std::min(most, round_up(ceil_div(block, ceil_div(block, most)), step));
      parts_ = ceil_div(block, chunk_);
    } else {
      // Short blocks share a tile.
      if (block < least) block_ = least / block * block;
      chunk_ = block_;
    }
  }
  count_ = ceil_div(length, block_) * parts_;
}

KeyRange Cuts::at(std::int64_t n) const {
  const std::int64_t begin = n / parts_ * block_ + n % parts_ * chunk_;
  return {begin, std::min(begin + chunk_, (n / parts_ + 1) * block_)};
}

ListedColumns::ListedColumns(const Problem& p) : p_(p) {
  const BlockList& list = p.block_list;
  if (!list.defined() || p.batch == 0) return;
  batches_ = list.row_offsets.strides[0] == 0 ? 1 : p.batch;
  heads_ = list.row_offsets.strides[1] == 0 ? 1 : p.heads_q;
  key_blocks_ = ceil_div(p.seq_k, list.block_k);
  const std::int64_t rows = ceil_div(p.seq_q, list.block_q);
  offsets_.assign(static_cast<std::size_t>(batches_ * heads_ * (key_blocks_ + 1) + 1), 0);
  // A counting sort: how often each column occurs, where it begins, and its rows in their order.
  const auto for_entries = [&](const auto& use) {
    for (std::int64_t b = 0; b < batches_; ++b) {
      for (std::int64_t h = 0; h < heads_; ++h) {
        for (std::int64_t row = 0; row < rows; ++row) {
          const ListedBlocks listed(list, b, h, row);
          const std::int64_t at = list_of(b, h);
          for (std::int64_t n = 0; n < listed.count(); ++n) use(at + listed.block(n), row);
        }
      }
    }
  };
  for_entries([&](std::int64_t at, std::int64_t) { ++offsets_[static_cast<std::size_t>(at) + 1]; });
  for (std::size_t at = 1; at < offsets_.size(); ++at) offsets_[at] += offsets_[at - 1];
  query_blocks_.resize(static_cast<std::size_t>(offsets_.back()));
  std::vector<std::int64_t> next(offsets_.begin(), offsets_.end() - 1);
  for_entries([&](std::int64_t at, std::int64_t row) {
    query_blocks_[static_cast<std::size_t>(next[static_cast<std::size_t>(at)]++)] =
        static_cast<std::int32_t>(row);
  });
}

std::int64_t ListedColumns::list_of(std::int64_t b, std::int64_t h) const {
  return ((batches_ == 1 ? 0 : b) * heads_ + (heads_ == 1 ? 0 : h)) * (key_blocks_ + 1);
}

std::vector<KeyRange> ListedColumns::runs(std::int64_t b, std::int64_t h, std::int64_t j0,
                                          std::int64_t keys, KeyRange rows,
                                          std::int64_t step) const {
  if (rows.empty()) return {};
  if (!p_.block_list.defined()) return {rows};
  const std::int64_t block_q = p_.block_list.block_q;
  const std::int64_t first = j0 / p_.block_list.block_k;
  const std::int64_t last = (j0 + keys - 1) / p_.block_list.block_k;
  const auto from = static_cast<std::size_t>(list_of(b, h) + first);
  const auto to = static_cast<std::size_t>(list_of(b, h) + last + 1);
  std::vector<std::int32_t> several;
  const std::int32_t* block = query_blocks_.data() + offsets_[from];
  const std::int32_t* end = query_blocks_.data() + offsets_[to];
  if (last > first) {
    several.assign(block, end);
    std::sort(several.begin(), several.end());
    block = several.data();
    end = block + several.size();
  }
  std::vector<KeyRange> runs;
  for (; block != end; ++block) {
    const KeyRange own{std::max(rows.begin, *block * block_q),
                       std::min(rows.end, (*block + 1) * block_q)};
    if (own.empty()) continue;
    const bool joins = !runs.empty() && (own.begin <= runs.back().end ||
                                         own.begin < round_up(runs.back().end, step));
    if (joins) {
      runs.back().end = std::max(runs.back().end, own.end);
    } else {
      runs.push_back({own.begin / step * step, own.end});
    }
  }
  return runs;
}

}  // namespace tilewise::cpu
