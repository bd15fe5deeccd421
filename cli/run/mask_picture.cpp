#include "cli/run/mask_picture.h"

#include <fmt/format.h>

#include <algorithm>

#include "problem/listed_blocks.h"

namespace tilewise::cli {

BlockPicture::BlockPicture(const BlockList& list, std::int64_t b, std::int64_t h, std::int64_t rows,
                           std::int64_t columns)
    : rows_(rows), columns_(columns), runs_(static_cast<std::size_t>(rows)) {
  for (std::int64_t row = 0; row < rows; ++row) {
    std::vector<Run>& runs = runs_[static_cast<std::size_t>(row)];
    const ListedBlocks listed(list, b, h, row);
    for (std::int64_t n = 0; n < listed.count(); ++n) {
      const std::int64_t column = listed.block(n);
      const bool full = listed.full(n);
      (full ? full_ : partial_) += 1;
      if (!runs.empty() && runs.back().end == column && runs.back().full == full) {
        ++runs.back().end;
      } else {
        runs.push_back({column, column + 1, full});
      }
    }
  }
}

/// The blocks in a grid of `rows` x `columns` cells.
std::vector<BlockPicture::Cell> BlockPicture::cells(std::int64_t rows, std::int64_t columns) const {
  std::vector<Cell> cells(static_cast<std::size_t>(rows * columns));
  std::vector<std::int64_t> seen(cells.size(), 0);
  for (std::int64_t row = 0; row < rows_; ++row) {
    const std::int64_t y = row * rows / rows_;
    for (const Run& run : runs_[static_cast<std::size_t>(row)]) {
      for (std::int64_t column = run.begin; column < run.end;) {
        // To the end of the cell, or of the run.
        const std::int64_t x = column * columns / columns_;
        const std::int64_t cell_end = ((x + 1) * columns_ + columns - 1) / columns;
        const std::int64_t end = std::min(run.end, cell_end);
        const auto at = static_cast<std::size_t>(y * columns + x);
        cells[at].share += static_cast<double>(end - column) * (run.full ? 1.0 : 0.5);
        cells[at].none = false;
        cells[at].all = cells[at].all && run.full;
        seen[at] += end - column;
        column = end;
      }
    }
  }
  const auto first = [](std::int64_t cell, std::int64_t count, std::int64_t of) {
    return (cell * count + of - 1) / of;
  };
  for (std::int64_t y = 0; y < rows; ++y) {
    for (std::int64_t x = 0; x < columns; ++x) {
      const auto at = static_cast<std::size_t>(y * columns + x);
      const std::int64_t blocks = (first(y + 1, rows_, rows) - first(y, rows_, rows)) *
                                  (first(x + 1, columns_, columns) - first(x, columns_, columns));
      cells[at].all = cells[at].all && seen[at] == blocks;
      cells[at].share /= static_cast<double>(std::max<std::int64_t>(blocks, 1));
    }
  }
  return cells;
}

std::string BlockPicture::text() const {
  constexpr std::int64_t kMostColumns = 64, kMostRows = 32;
  if (rows_ == 0 || columns_ == 0) return {};
  const std::int64_t columns = std::min(columns_, kMostColumns);
  const std::int64_t rows = std::min(rows_, kMostRows);
  const int wide = 2 * columns <= kMostColumns ? 2 : 1;  // a character is twice as high as wide
  const std::vector<Cell> grid = cells(rows, columns);
  std::string out;
  for (std::int64_t y = 0; y < rows; ++y) {
    for (std::int64_t x = 0; x < columns; ++x) {
      const Cell& cell = grid[static_cast<std::size_t>(y * columns + x)];
      const char* sign = cell.none               ? "·"
                         : cell.all              ? "█"
                         : cell.share < 1.0 / 3  ? "░"
                         : cell.share <= 2.0 / 3 ? "▒"
                                                 : "▓";
      for (int n = 0; n < wide; ++n) out += sign;
    }
    out += '\n';
  }
  return out +
         "queries downwards, keys to the right; · hidden, ░ ▒ ▓ partly visible, █ fully visible\n";
}

std::string BlockPicture::svg() const {
  constexpr std::int64_t kMost = 512;
  const std::int64_t columns = std::clamp<std::int64_t>(columns_, 1, kMost);
  const std::int64_t rows = std::clamp<std::int64_t>(rows_, 1, kMost);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{2}\" "
      "height=\"{3}\" shape-rendering=\"crispEdges\">\n<rect width=\"{0}\" height=\"{1}\" "
      "fill=\"#f4f4f4\"/>\n",
      columns, rows, std::max<std::int64_t>(columns, 512),
      std::max<std::int64_t>(columns, 512) * rows / columns);
  if (rows_ == 0 || columns_ == 0) return out + "</svg>\n";
  const std::vector<Cell> grid = cells(rows, columns);
  const auto alike = [](const Cell& a, const Cell& b) {
    return a.none == b.none && a.all == b.all && a.share == b.share;
  };
  for (std::int64_t y = 0; y < rows; ++y) {
    const Cell* row = grid.data() + y * columns;
    for (std::int64_t x = 0, end = 0; x < columns; x = end) {
      for (end = x + 1; end < columns && alike(row[x], row[end]);) ++end;
      if (row[x].none) continue;
      out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"1\" fill=\"{}\"", x, y,
                         end - x, row[x].all ? "#1f4e79" : "#e08a1e");
      out += row[x].all ? "/>\n"
                        : fmt::format(" fill-opacity=\"{:.2f}\"/>\n", 0.35 + 0.65 * row[x].share);
    }
  }
  return out + "</svg>\n";
}

}  // namespace tilewise::cli
