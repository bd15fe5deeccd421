/// copy_rows: constants and parameters. See rows/README.md.
#pragma once

#include "cuda/tile/types.h"

namespace tilewise::copy_rows {

struct Config {
  int element_bytes = 2;  ///< 2, 4 or 8: several elements are one where strides allow
};

struct Args {
  tile::View4 from, to;  ///< (B, H, S, D), any strides
  int heads = 1;
  long long rows = 0;  ///< S
  int dim = 0;
  long long elements = 0;  ///< of all
};

inline constexpr int kThreads = 256;

}  // namespace tilewise::copy_rows
