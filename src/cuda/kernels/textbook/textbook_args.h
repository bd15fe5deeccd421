/// What the implementations that keep an S x S matrix share: baseline, eager, fused.
#pragma once

#include "cuda/tile/types.h"

namespace tilewise::textbook {

/// How the elements of a tensor lie in memory.
enum class Storage : int { float32, bf16, fp16 };

/// From the product q.k to the logit that softmax sees. CONTRACT 1, 4, 5.
struct LogitRule {
  float scale = 1.0F;
  float softcap = 0.0F;          ///< 0 = off
  const float* alibi = nullptr;  ///< slopes, may be null
  long long alibi_b = 0, alibi_h = 0;
  long long left = 0, right = 0;  ///< on the shifted diagonal, inclusive
  bool top_left = false;          ///< also j <= i
  int heads = 1, seq_q = 0, seq_k = 0;
};

/// A (batch, head, row) view of one number a row, the LSE say.
struct RowView {
  float* data = nullptr;  ///< may be null
  long long stride_b = 0, stride_h = 0, stride_s = 0;
};

inline constexpr int kThreads = 256;

}  // namespace tilewise::textbook
