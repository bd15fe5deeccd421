/// The interpreter: a program in float64, one pair at a time. The definition that the other
/// evaluators are compared with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "expression/evaluate.h"
#include "expression/program.h"

namespace tilewise::expression {

/// A pair and what the leaves read of it.
struct Point {
  std::int64_t b = 0, h = 0, i = 0, j = 0;
  std::int64_t query_length = 0, key_length = 0;
  double score = 0.0;
};

/// The element that an index of an axis means: from the end where it is negative, cut to the axis.
inline std::int64_t in_axis(std::int64_t index, std::int64_t size) {
  return std::clamp<std::int64_t>(index < 0 ? index + size : index, 0, size - 1);
}

/// Evaluates a program's nodes. For one thread. The program and the captured tensors, in host
/// memory, outlive it.
class Interpreter {
 public:
  Interpreter(const Program& program, std::span<const Tensor> captures);

  /// Turns to a pair and evaluates every node that no lane changes.
  void turn_to(const Point& point);
  /// Evaluates the nodes that lane `lane` changes.
  void turn_to_lane(std::int64_t lane);

  double real(std::int32_t node) const { return values_[static_cast<std::size_t>(node)].real; }
  std::int64_t integer(std::int32_t node) const {
    return values_[static_cast<std::size_t>(node)].integer;
  }
  bool boolean(std::int32_t node) const { return integer(node) != 0; }

 private:
  Value evaluate(const Node& node);
  Value reduced(const Node& node);
  Value loaded(const Node& node) const;

  const Program& program_;
  std::span<const Tensor> captures_;
  Point point_;
  std::int64_t lane_ = 0;
  std::vector<Value> values_;
  std::vector<std::int32_t> lane_nodes_;  ///< what a lane changes, arguments first
};

}  // namespace tilewise::expression
