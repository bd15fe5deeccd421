/// Gradients of the tensors that a score expression captures.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cpu/flash/expression_tiles.h"
#include "problem/problem.h"
#include "tilewise/runtime.h"

namespace tilewise::cpu {

/// Sums in float64, in parts: each part is one thread's at a time and takes its tiles in a fixed
/// order, and the parts are added in order at the end. So the number of threads changes no bit as
/// long as it does not change the number of parts.
class CaptureGradients {
 public:
  explicit CaptureGradients(const Problem& problem);

  bool wanted() const { return elems_ > 0; }
  /// Sums of one part: all wanted captures behind one another.
  std::int64_t elems() const { return elems_; }
  /// As many parts as `most`, fewer where their sums would take too much memory.
  int parts(int most) const;

  /// What the nodes of ExpressionTiles are whose strips add() takes, one group a term.
  std::vector<ExpressionRoots> groups() const;
  /// Adds a block of a tile to a part: its term's values times `dy`, the gradient of the result, on
  /// pairs whose `p` is not 0. dy and p are the tile's.
  void add(const ExpressionTiles& tiles, const ExpressionTiles::Strips& strips, const TilePlace& at,
           const float* p, const float* dy, double* sums) const;
  /// dcaptures = the sum of the parts, which lie behind one another.
  void finish(const double* parts, int count, Executor& executor, int workers) const;

 private:
  /// A wanted capture: where its sums begin, and the element at an index.
  struct Table {
    std::int64_t begin = -1;
    int rank = 1;
    std::array<std::int64_t, 4> sizes{}, strides{};
    void elements(const ExpressionTiles::Strips& strips, int r, int count, std::int64_t* out) const;
  };
  void store(std::int32_t capture, std::int64_t first, std::int64_t count, const double* parts,
             int part_count) const;

  const Problem& problem_;
  std::vector<Table> tables_;
  std::vector<expression::CaptureTerm> terms_;
  std::int64_t elems_ = 0;
};

}  // namespace tilewise::cpu
