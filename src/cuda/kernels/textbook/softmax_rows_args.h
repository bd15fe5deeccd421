/// softmax_rows: constants and parameters. See textbook/README.md.
#pragma once

#include "cuda/kernels/textbook/textbook_args.h"

namespace tilewise::softmax_rows {

struct Config {
  textbook::Storage storage = textbook::Storage::float32;  ///< of P and dS
  int threads = textbook::kThreads;                        ///< of a block; one block a row
  int items = 0;  ///< one pass: elements of a row that a thread keeps; 0 = rows too long for that
                  ///< are read again
};

/// All matrices are (B, Hq, Sq, Sk), rows of seq_k elements side by side.
struct Args {
  float* s = nullptr;  ///< products; eager turns them into logits
  void* p = nullptr;   ///< probabilities
  /// dP. Becomes dS, whose elements are of P's type: row r starts where dP's row r does.
  float* dp = nullptr;
  float* statistics = nullptr;  ///< (rows, 2), eager only: what is subtracted, and 1 / sum
  float* delta = nullptr;       ///< (rows), eager only
  textbook::RowView lse;
  textbook::RowView d_lse;
  textbook::LogitRule rule;
};

}  // namespace tilewise::softmax_rows
