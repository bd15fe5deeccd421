/// score_strip: constants and parameters. See rows/README.md.
#pragma once

#include "cuda/tile/expression_args.h"
#include "cuda/tile/sequences_args.h"

namespace tilewise::score_strip {

struct Config {
  tile::Expressions expressions = {.score = 1};
  bool operator==(const Config&) const = default;
};

struct Args {
  tile::Strip strip;
  void* values = nullptr;            ///< the strip's
  int blocks = 1;                    ///< of the grid, for each batch entry and head
  int seq_q = 0, seq_k = 0;          ///< packed: of the longest sequences
  const int* key_lengths = nullptr;  ///< (B), may be null
  long long key_lengths_b = 0;
  tile::Sequences queries, keys;  ///< packed: with offsets. Keys may have key_lengths then.
};

inline constexpr int kThreads = 256;
/// Distances beyond those of pairs: tiles are padded.
inline constexpr int kPadding = 256;

}  // namespace tilewise::score_strip
