#include "expression/block_map.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "expression/interpret.h"
#include "expression/intervals.h"
#include "problem/blocks.h"
#include "problem/listed_blocks.h"
#include "tilewise/error.h"

namespace tilewise::expression {
namespace {

enum class Verdict : std::uint8_t { empty, undecided, full };

constexpr std::int64_t kFewElements = 64;  // of a box whose elements are looked at one by one

/// A rectangle of blocks that are alike.
struct Rectangle {
  std::int32_t row, row_end, column, column_end;
  bool full;
};

/// Lists the blocks of one head of one sequence.
class Mapper {
 public:
  /// Gives up after `most_steps` boxes and pairs.
  Mapper(const Problem& p, const Function& mask, const RangeTables& tables, std::int64_t block_q,
         std::int64_t block_k, std::int64_t most_steps = std::numeric_limits<std::int64_t>::max())
      : p_(p),
        block_q_(block_q),
        block_k_(block_k),
        intervals_(*mask.program, tables),
        interpreter_(*mask.program, mask.captures),
        result_(mask.program->result),
        steps_left_(most_steps) {}

  /// Then what was found of the last head is a part.
  bool gave_up() const { return steps_left_ < 0; }

  /// Rectangles in an order in which the columns of each row ascend.
  const std::vector<Rectangle>& rectangles(std::int64_t b, std::int64_t h) {
    sequence_ = p_.sequence(b);
    b_ = b;
    h_ = h;
    intervals_.turn_to({b, h, sequence_.q_length, sequence_.k_length});
    found_.clear();
    const std::int64_t rows = ceil_div(sequence_.q_length, block_q_);
    const std::int64_t columns = ceil_div(sequence_.k_length, block_k_);
    if (rows > 0 && columns > 0) {
      // Boxes at multiples of powers of two: masks of bits are decided in large ones.
      descend(0, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows))), 0,
              static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(columns))));
    }
    return found_;
  }

 private:
  Verdict verdict(const Box& box) {
    if (--steps_left_ < 0) return Verdict::empty;
    // Both ends of a row's keys move to the right with the row.
    const KeyRange first = p_.visible_keys(sequence_, box.query);
    const KeyRange last = p_.visible_keys(sequence_, box.query_end - 1);
    if (last.end <= box.key || first.begin >= box.key_end) return Verdict::empty;
    const Range& seen = intervals_.over(box);
    if (seen.never()) return Verdict::empty;
    const bool whole = first.end >= box.key_end && last.begin <= box.key;
    return whole && seen.always() ? Verdict::full : Verdict::undecided;
  }

  bool sees(std::int64_t i, std::int64_t j) {
    const KeyRange keys = p_.visible_keys(sequence_, i);
    if (j < keys.begin || j >= keys.end) return false;
    --steps_left_;
    interpreter_.turn_to({b_, h_, i, j, sequence_.q_length, sequence_.k_length, 0.0});
    return interpreter_.boolean(result_);
  }

  void descend(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
    const Box box{row * block_q_, std::min((row + rows) * block_q_, sequence_.q_length),
                  column * block_k_, std::min((column + columns) * block_k_, sequence_.k_length)};
    if (box.query >= box.query_end || box.key >= box.key_end) return;
    const Verdict found = verdict(box);
    if (found == Verdict::empty) return;
    if (found == Verdict::full) return add(row, rows, column, columns, true);
    if (rows == 1 && columns == 1) {
      const Verdict exact = looked_at(box);
      if (exact != Verdict::empty) add(row, 1, column, 1, exact == Verdict::full);
      return;
    }
    const bool split_rows = rows > 1 && (columns == 1 || 2 * rows * block_q_ > columns * block_k_);
    const bool split_columns =
        columns > 1 && (rows == 1 || 2 * columns * block_k_ > rows * block_q_);
    const std::int64_t row_step = split_rows ? rows / 2 : rows;
    const std::int64_t column_step = split_columns ? columns / 2 : columns;
    for (std::int64_t r = row; r < row + rows; r += row_step) {
      for (std::int64_t c = column; c < column + columns; c += column_step) {
        descend(r, row_step, c, column_step);
      }
    }
  }

  void add(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns,
           bool full) {
    const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
    found_.push_back(
        {narrow(row), narrow(std::min(row + rows, ceil_div(sequence_.q_length, block_q_))),
         narrow(column), narrow(std::min(column + columns, ceil_div(sequence_.k_length, block_k_))),
         full});
  }

  /// What is seen and what is hidden of a block, as far as has been looked.
  struct Found {
    bool seen = false, hidden = false;
    bool both() const { return seen && hidden; }
  };

  /// A block that no interval decides: its corners and its middle, then its parts.
  Verdict looked_at(const Box& box) {
    Found found;
    const std::int64_t i = box.query_end - 1;
    const std::int64_t j = box.key_end - 1;
    const std::int64_t points[][2] = {{box.query, j},
                                      {i, box.key},
                                      {(box.query + i) / 2, (box.key + j) / 2},
                                      {box.query, box.key},
                                      {i, j}};
    for (const auto& [query, key] : points) {
      (sees(query, key) ? found.seen : found.hidden) = true;
      if (found.both()) return Verdict::undecided;
    }
    look_at(box, found);
    if (found.both()) return Verdict::undecided;
    return found.seen ? Verdict::full : Verdict::empty;
  }

  void look_at(const Box& box, Found& found) {
    const std::int64_t rows = box.query_end - box.query;
    const std::int64_t columns = box.key_end - box.key;
    const Verdict part = verdict(box);
    if (part == Verdict::empty) found.hidden = true;
    if (part == Verdict::full) found.seen = true;
    if (part != Verdict::undecided) return;
    if (rows * columns <= kFewElements) return look_at_elements(box, found);
    const auto half = [](std::int64_t count) {
      return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count)) / 2);
    };
    const std::int64_t row_step = 2 * rows > columns ? half(rows) : rows;
    const std::int64_t column_step = 2 * columns > rows ? half(columns) : columns;
    for (std::int64_t i = box.query; i < box.query_end; i += row_step) {
      for (std::int64_t j = box.key; j < box.key_end && !found.both(); j += column_step) {
        look_at(
            {i, std::min(i + row_step, box.query_end), j, std::min(j + column_step, box.key_end)},
            found);
      }
    }
  }

  void look_at_elements(const Box& box, Found& found) {
    for (std::int64_t i = box.query; i < box.query_end; ++i) {
      for (std::int64_t j = box.key; j < box.key_end && !found.both(); ++j) {
        (sees(i, j) ? found.seen : found.hidden) = true;
      }
    }
  }

  const Problem& p_;
  std::int64_t block_q_, block_k_;
  Intervals intervals_;
  Interpreter interpreter_;
  std::int32_t result_;
  std::int64_t steps_left_;
  std::int64_t b_ = 0, h_ = 0;
  Sequence sequence_;
  std::vector<Rectangle> found_;
};

/// Appends one head's rectangles, row by row, to a map.
class Rows {
 public:
  Rows(BlockMap& map, const Problem& p) : map_(map), p_(p) {}

  void append(std::int64_t b, std::int64_t h, const std::vector<Rectangle>& rectangles) {
    const auto rows = static_cast<std::size_t>(map_.query_blocks);
    at_.assign(rows + 1, 0);  // a counting sort: their order within a row stays
    std::int64_t entries = 0;
    for (const Rectangle& r : rectangles) {
      entries += std::int64_t{r.row_end - r.row} * (r.column_end - r.column);
      for (std::int32_t row = r.row; row < r.row_end; ++row) {
        at_[static_cast<std::size_t>(row) + 1] += r.column_end - r.column;
      }
    }
    const auto begin = static_cast<std::int64_t>(map_.block_index.size());
    if (begin + entries > std::numeric_limits<std::int32_t>::max()) {
      throw OutOfMemory("a block map of more than 2^31 blocks is not supported; use larger blocks");
    }
    for (std::size_t row = 1; row <= rows; ++row) at_[row] += at_[row - 1];
    for (const std::int64_t at : at_) {
      map_.row_offsets.push_back(static_cast<std::int32_t>(begin + at));
    }
    map_.block_index.resize(static_cast<std::size_t>(begin + entries));
    map_.block_full.resize(map_.block_index.size());
    for (const Rectangle& r : rectangles) {
      for (std::int32_t row = r.row; row < r.row_end; ++row) {
        for (std::int32_t column = r.column; column < r.column_end; ++column) {
          const auto to = static_cast<std::size_t>(begin + at_[static_cast<std::size_t>(row)]++);
          map_.block_index[to] = column;
          map_.block_full[to] = r.full && !p_.mask.defined() ? 1 : 0;
        }
      }
    }
    if (p_.block_list.defined()) keep_listed(b, h);
  }

 private:
  /// Keeps those blocks of the rows just added that the problem's own list has too.
  void keep_listed(std::int64_t b, std::int64_t h) {
    std::int32_t* offsets = map_.row_offsets.data() + map_.row_offsets.size() -
                            static_cast<std::size_t>(map_.query_blocks) - 1;
    auto to = static_cast<std::size_t>(offsets[0]);
    std::size_t from = to;
    for (std::int64_t row = 0; row < map_.query_blocks; ++row) {
      const ListedBlocks listed(p_.block_list, b, h, row);
      const auto end = static_cast<std::size_t>(offsets[row + 1]);
      std::int64_t n = 0;
      for (; from < end; ++from) {
        while (n < listed.count() && listed.block(n) < map_.block_index[from]) ++n;
        if (n == listed.count() || listed.block(n) != map_.block_index[from]) continue;
        map_.block_index[to] = map_.block_index[from];
        map_.block_full[to] = map_.block_full[from] != 0 || listed.full(n) ? 1 : 0;
        ++to;
      }
      offsets[row + 1] = static_cast<std::int32_t>(to);
    }
    map_.block_index.resize(to);
    map_.block_full.resize(to);
  }

  BlockMap& map_;
  const Problem& p_;
  std::vector<std::int64_t> at_;
};

/// The variables that a mask depends on.
std::uint8_t variables_of(const Function& mask) {
  const Program& program = *mask.program;
  return program.nodes[static_cast<std::size_t>(program.result)].depends;
}

/// What a map tells apart, and the sizes of its blocks.
struct MapAxes {
  std::int64_t batch, heads, block_q, block_k;

  MapAxes(const Problem& p, const Function& mask, std::int64_t wanted_q, std::int64_t wanted_k)
      : block_q(std::clamp<std::int64_t>(wanted_q, 1, std::max<std::int64_t>(p.seq_q, 1))),
        block_k(std::clamp<std::int64_t>(wanted_k, 1, std::max<std::int64_t>(p.seq_k, 1))) {
    const Tensor& listed = p.block_list.row_offsets;
    const bool has_list = p.block_list.defined();
    const bool of_batch = (variables_of(mask) & kBatch) != 0 || p.packed ||
                          p.key_lengths.defined() || (has_list && listed.strides[0] != 0);
    const bool of_head = differs_by_head(mask) || (has_list && listed.strides[1] != 0);
    batch = of_batch ? p.batch : 1;
    heads = of_head ? p.heads_q : 1;
  }
};

}  // namespace

BlockList BlockMap::list() const {
  // NOTE: a Tensor has no const data; nobody writes to a block list.
  const auto view = [](const auto& values, DType dtype, std::initializer_list<std::int64_t> shape) {
    return Tensor::contiguous(const_cast<void*>(static_cast<const void*>(values.data())), dtype,
                              shape);
  };
  const auto pairs = static_cast<std::int64_t>(block_index.size());
  BlockList list{.row_offsets = view(row_offsets, DType::int32, {batch, heads, query_blocks + 1}),
                 .block_index = view(block_index, DType::int32, {pairs}),
                 .block_full = view(block_full, DType::uint8, {pairs}),
                 .block_q = block_q,
                 .block_k = block_k};
  if (batch == 1) list.row_offsets.strides[0] = 0;
  if (heads == 1) list.row_offsets.strides[1] = 0;
  return list;
}

BlockMap make_block_map(const Problem& p, const Function& mask, std::int64_t block_q,
                        std::int64_t block_k) {
  const MapAxes axes(p, mask, block_q, block_k);
  BlockMap map;
  map.batch = axes.batch;
  map.heads = axes.heads;
  map.block_q = axes.block_q;
  map.block_k = axes.block_k;
  map.query_blocks = ceil_div(p.seq_q, map.block_q);
  const RangeTables tables(mask);
  Mapper mapper(p, mask, tables, map.block_q, map.block_k);
  Rows rows(map, p);
  for (std::int64_t b = 0; b < std::min(map.batch, p.batch); ++b) {
    for (std::int64_t h = 0; h < std::min(map.heads, p.heads_q); ++h) {
      rows.append(b, h, mapper.rectangles(b, h));
    }
  }
  // Without batch entries or heads nobody reads the list.
  map.row_offsets.resize(static_cast<std::size_t>(map.batch * map.heads * (map.query_blocks + 1)));
  return map;
}

bool differs_by_head(const Function& mask) { return (variables_of(mask) & kHead) != 0; }

double count_mapped_pairs(const Problem& p) {
  constexpr std::int64_t kMostSteps = 1 << 18;  // about 0.1 s
  const MapAxes axes(p, p.mask_function, kMapBlock, kMapBlock);
  const RangeTables tables(p.mask_function);
  Mapper mapper(p, p.mask_function, tables, axes.block_q, axes.block_k, kMostSteps);
  double pairs = 0.0;
  for (std::int64_t b = 0; b < std::min(axes.batch, p.batch); ++b) {
    const Sequence s = p.sequence(b);
    for (std::int64_t h = 0; h < std::min(axes.heads, p.heads_q); ++h) {
      for (const Rectangle& r : mapper.rectangles(b, h)) {
        const auto extent = [](std::int64_t first, std::int64_t end, std::int64_t block,
                               std::int64_t length) {
          return static_cast<double>(std::min(end * block, length) - first * block);
        };
        pairs += extent(r.row, r.row_end, axes.block_q, s.q_length) *
                 extent(r.column, r.column_end, axes.block_k, s.k_length);
      }
      if (mapper.gave_up()) return -1.0;
    }
  }
  if (axes.batch == 1) pairs *= static_cast<double>(p.batch);
  if (axes.heads == 1) pairs *= static_cast<double>(p.heads_q);
  return p.block_list.defined() && p.listed_pairs >= 0.0 ? std::min(pairs, p.listed_pairs) : pairs;
}

}  // namespace tilewise::expression
