/// A program over boxes of pairs: what a mask or a score function can be anywhere in a block.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "expression/program.h"
#include "expression/range.h"
#include "expression/range_table.h"

namespace tilewise::expression {

/// Queries query .. query_end - 1 and keys key .. key_end - 1; at least one of each.
struct Box {
  std::int64_t query = 0, query_end = 1;
  std::int64_t key = 0, key_end = 1;
};

/// Data that all boxes of a head share.
struct Head {
  std::int64_t b = 0, h = 0;
  std::int64_t query_length = 0, key_length = 0;
};

/// Tables of a function's captured tensors, for all its evaluators. The tensors are in host memory.
class RangeTables {
 public:
  explicit RangeTables(const Function& function);
  const RangeTable& of(std::int32_t capture) const {
    return *tables_[static_cast<std::size_t>(capture)];
  }
  std::int64_t bytes() const;

 private:
  std::vector<std::unique_ptr<RangeTable>> tables_;
};

/// Evaluates a program over boxes. For one thread; the program and the tables outlive it.
class Intervals {
 public:
  Intervals(const Program& program, const RangeTables& tables);

  void turn_to(const Head& head);
  /// The range of the program's result over a box.
  const Range& over(const Box& box);

 private:
  Range evaluate(const Node& node);
  Range reduced(const Node& node);
  void evaluate_all(const std::vector<std::int32_t>& nodes);

  const Program& program_;
  const RangeTables& tables_;
  Head head_;
  Box box_;
  bool fresh_ = true;  ///< no box of this head has been looked at
  std::int64_t lane_ = 0;
  std::vector<Range> values_;
  // Nodes by what changes them, arguments first.
  std::vector<std::int32_t> fixed_, of_query_, of_key_, of_both_, of_lane_;
};

}  // namespace tilewise::expression
