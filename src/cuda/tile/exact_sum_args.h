/// A sum of float32 numbers that does not depend on their order, as host and device both know it.
#pragma once

namespace tilewise::tile {

/// Words of 64 bits: word n counts units of 2^(32 n - 160); the last holds what is no number.
struct ExactSum {
  static constexpr int kBins = 10, kWords = kBins + 1;
  static constexpr int kLowest = -160;  ///< exponent of the first unit
  static constexpr int kFloats = 2 * kWords;
  static constexpr unsigned kNan = 1, kPositive = 2, kNegative = 4;
};

}  // namespace tilewise::tile
