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
///
/// Where each pair has an element of its own, as in m[h, i, j] of one batch entry, its gradient is
/// stored as it is, and nothing is summed.
class CaptureGradients {
 public:
  explicit CaptureGradients(const Problem& problem);

  bool wanted() const { return elems_ > 0; }
  /// Zeros where pairs store their elements, before any tile.
  void clear(Executor& executor, int workers) const;
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
  /// A wanted capture: where its sums begin, and how its elements lie there.
  struct Table {
    bool wanted = false;
    bool stored = false;  ///< there are no sums: elements lie as those of its gradient
    std::int64_t begin = 0;
    CaptureView view;
  };
  /// A term, and the axis that j counts while the other indices stay in a row; -1 where none does.
  struct Term {
    expression::CaptureTerm of;
    int key_axis;
  };
  int key_axis(const expression::CaptureTerm& term) const;
  bool has_element_of_pair(const expression::CaptureTerm& term) const;
  const Table& table_of(const Term& term) const {
    return tables_[static_cast<std::size_t>(term.of.capture)];
  }
  void add_rows(const ExpressionTiles& tiles, const ExpressionTiles::Strips& strips,
                const TilePlace& at, const float* parts, double* to) const;
  void store_rows(const ExpressionTiles& tiles, const ExpressionTiles::Strips& strips,
                  const TilePlace& at, const float* parts) const;
  void store(std::int32_t capture, std::int64_t first, const double* parts, int part_count) const;

  const Problem& problem_;
  std::vector<Table> tables_;
  std::vector<Term> terms_;
  std::int64_t elems_ = 0;
};

}  // namespace tilewise::cpu
