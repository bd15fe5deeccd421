/// merge_rows: constants and parameters. See rows/README.md.
#pragma once

#include "cuda/tile/types.h"

namespace tilewise::merge_rows {

enum class Type : int { bf16, fp16, float32 };

struct Config {
  Type type = Type::bf16;
  bool vectors = true;  ///< all rows begin at 16 bytes, with elements side by side
  int lanes = 16;       ///< of a row, 8 columns each at a time
  bool operator==(const Config&) const = default;
};

/// A (batch, head, row) view of floats.
struct RowStatistics {
  float* data = nullptr;
  long long stride_b = 0, stride_h = 0, stride_s = 0;
};

struct Args {
  tile::View4 o, other;
  RowStatistics lse, other_lse;
  long long rows = 0;  ///< batch * heads * seq_q
  int heads = 1, seq_q = 1, head_dim_v = 0;
};

inline constexpr int kThreads = 128;

}  // namespace tilewise::merge_rows
