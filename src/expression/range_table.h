/// Smallest and largest elements of stretches of a captured tensor, by blocks of blocks.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "expression/range.h"
#include "tilewise/tensor.h"

namespace tilewise::expression {

/// Bounds of a tensor in host memory. The tensor must outlive the table.
class RangeTable {
 public:
  /// `type`: what a load of the tensor is.
  RangeTable(const Tensor& tensor, Type type);

  /// What elements whose indices lie within `indices`, one for each axis, can be. An index below 0
  /// counts from the axis' end; one that is still outside is cut to the axis.
  Range over(std::span<const Range> indices) const;

  /// Memory of the table.
  std::int64_t bytes() const;

 private:
  struct Bounds {
    double least, most;
    bool nan;
    void add(const Bounds& other);
  };
  /// Elements of an axis: begin .. end.
  struct Stretch {
    std::int64_t begin, end;
  };

  Bounds element(std::int64_t at) const;
  Bounds over_line(std::int64_t line, std::int64_t at, Stretch stretch) const;
  Range range_of(const Bounds& bounds) const;

  Tensor t_;
  Type type_;
  int last_;                          ///< the innermost axis
  std::int64_t lines_ = 1;            ///< along it
  std::vector<std::int64_t> sizes_;   ///< blocks of a line, by level
  std::vector<std::int64_t> begins_;  ///< where a level begins in blocks_
  std::vector<Bounds> blocks_;        ///< level by level, line by line
  Bounds whole_;
};

}  // namespace tilewise::expression
