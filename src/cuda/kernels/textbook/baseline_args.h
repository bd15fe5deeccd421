/// baseline: constants and parameters. See textbook/README.md.
#pragma once

#include "cuda/kernels/textbook/textbook_args.h"

namespace tilewise::baseline {

struct Config {
  textbook::Storage storage = textbook::Storage::float32;  ///< of Q, K, V, O
};

/// All five kernels take the same.
struct Args {
  tile::View4 q, k, v, o;
  float* s = nullptr;        ///< (B, Hq, Sq, Sk)
  float* maximum = nullptr;  ///< (B, Hq, Sq)
  float* sum = nullptr;      ///< (B, Hq, Sq)
  textbook::RowView lse;
  textbook::LogitRule rule;
  int group = 1;  ///< query heads of a key head
  int head_dim = 0, head_dim_v = 0;
  long long rows = 0;  ///< B * Hq * Sq
};

}  // namespace tilewise::baseline
