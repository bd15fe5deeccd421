/// Bounds of a node's value over a box of pairs, and the known bits of an integer.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "expression/program.h"

namespace tilewise::expression {

/// Every value lies within it; it may be wider than need be. Bounds of reals hold in float64 and
/// for the roundings of float32.
struct Range {
  // Bounds of a 32-bit integer, or of a boolean as 0 or 1.
  std::int64_t low = 0, high = 0;
  std::uint32_t known = 0;  ///< bits that all values have in common
  std::uint32_t bits = 0;   ///< those bits; 0 elsewhere

  // Bounds of a real.
  double least = 0.0, most = 0.0;
  bool nan = false;  ///< some value may be NaN

  bool single() const { return low == high; }
  bool always() const { return low == 1; }  ///< of a boolean
  bool never() const { return high == 0; }
};

/// The integers low .. high.
Range integers(std::int64_t low, std::int64_t high);
inline Range boolean(bool may_be_false, bool may_be_true) {
  return integers(may_be_false ? 0 : 1, may_be_true ? 1 : 0);
}
Range reals(double least, double most, bool nan = false);
/// The range of float64 values that kernels round to float32.
Range stored_reals(double least, double most, bool nan = false);
/// All values of the type.
Range anything(Type type);
/// The smallest range that holds both.
Range hull(Type type, const Range& a, const Range& b);

/// The range of `op` over operands of the type `operands` (of where: of its values), as apply() in
/// evaluate.h.
Range apply(Op op, Type operands, std::span<const Range> args);

}  // namespace tilewise::expression
