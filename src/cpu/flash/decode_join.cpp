#include "cpu/flash/decode_join.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tilewise::cpu {

void join_splits(const DecodeGeometry& g, std::int64_t row, float* m, float* l, float* o) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  float high = kNothing;
  for (std::int64_t split = 0; split < g.splits; ++split) {
    high = std::max(high, m[split * g.rows + row]);
  }
  const float shift = high == kNothing ? 0.0F : high;  // -inf - -inf would be NaN
  float* sum = o + row * g.ld_v;
  for (std::int64_t split = 0; split < g.splits; ++split) {
    const std::int64_t at = split * g.rows + row;
    const float factor = std::exp(m[at] - shift);
    const float* part = o + at * g.ld_v;
    const bool first = split == 0;
    l[row] = first ? factor * l[row] : l[row] + factor * l[at];
    for (std::int64_t c = 0; c < g.ld_v; ++c) {
      sum[c] = first ? factor * sum[c] : sum[c] + factor * part[c];
    }
  }
  m[row] = high;
}

}  // namespace tilewise::cpu
