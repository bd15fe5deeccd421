/// A block list of one head as a picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tilewise/spec.h"

namespace tilewise::cli {

class BlockPicture {
 public:
  /// A picture of the first `rows` x `columns` blocks of (b, h). The list is in host memory, with
  /// strides of 0 where it broadcasts.
  BlockPicture(const BlockList& list, std::int64_t b, std::int64_t h, std::int64_t rows,
               std::int64_t columns);

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t full_blocks() const { return full_; }
  std::int64_t partial_blocks() const { return partial_; }

  /// At most 64 x 32 characters and a legend: darker where more is seen.
  std::string text() const;
  /// At most 512 x 512 squares.
  std::string svg() const;

 private:
  /// Blocks seen of a rectangle of the picture, a partial one as a half, over all of its blocks;
  /// and whether none or all is seen.
  struct Cell {
    double share = 0.0;
    bool none = true, all = true;
  };
  std::vector<Cell> cells(std::int64_t rows, std::int64_t columns) const;

  /// Columns begin .. end - 1 of a row are listed.
  struct Run {
    std::int64_t begin, end;
    bool full;
  };
  std::int64_t rows_, columns_;
  std::int64_t full_ = 0, partial_ = 0;
  std::vector<std::vector<Run>> runs_;  ///< of each row
};

}  // namespace tilewise::cli
