/// bwd_diagonals: constants and parameters. See bwd_sm80/captures.md.
#pragma once

#include "cuda/tile/expression_args.h"
#include "cuda/tile/sequences_args.h"

namespace tilewise::bwd_diagonals {

struct Config {
  bool exact = false;             ///< sums are tile::ExactSum, of diagonals and of elements
  tile::Expressions expressions;  ///< the score function with its terms
};

inline constexpr int kThreads = 128, kRun = 16;  ///< diagonals of a thread, one after the other

struct Args {
  const float* sums = nullptr;  ///< (B, Hq, count): dS by i - j + last_key
  int count = 0, last_key = 0;
  int blocks = 1;                       ///< of the grid, for each head
  int heads = 1, seq_q = 0, seq_k = 0;  ///< packed: of the longest sequences
  const int* key_lengths = nullptr;     ///< (B), may be null
  long long key_lengths_b = 0;
  tile::Sequences queries, keys;  ///< packed: with offsets; B are the sequences
};

}  // namespace tilewise::bwd_diagonals
