/// expression_values: constants and parameters. See rows/README.md.
#pragma once

#include "cuda/tile/expression_args.h"

namespace tilewise::expression_values {

/// How many functions the unit's text has, from index 1 on.
struct Config {
  int scores = 0, masks = 0;
  bool operator==(const Config&) const = default;
};

/// A pair that functions are asked for.
struct Point {
  int b = 0, h = 0, i = 0, j = 0, query_length = 1, key_length = 1;
  float score = 0.0F;
};

struct Args {
  const Point* points = nullptr;
  int count = 0;                             ///< of points
  const tile::Captures* captures = nullptr;  ///< of each score function, then of each mask
  /// (scores, 2, count), the value and its derivative by the score; then (masks, count), 0 or 1.
  float* values = nullptr;
};

inline constexpr int kThreads = 128;

}  // namespace tilewise::expression_values
