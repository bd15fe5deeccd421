/// copy_rows: constants and parameters. See rows/README.md.
#pragma once

#include "cuda/tile/types.h"

namespace tilewise::copy_rows {

struct Config {
  int element_bytes = 2;  ///< 2 or 4
  bool hides = false;     ///< rows whose LSE is -inf become 0
};

struct Args {
  tile::View4 from, to;  ///< (B, H, S, D), any strides
  int heads = 1;
  long long rows = 0;  ///< S
  int dim = 0;
  long long elements = 0;      ///< of all
  const float* lse = nullptr;  ///< with hides: (B, H, S)
  long long lse_b = 0, lse_h = 0, lse_s = 0;
};

inline constexpr int kThreads = 256;

}  // namespace tilewise::copy_rows
