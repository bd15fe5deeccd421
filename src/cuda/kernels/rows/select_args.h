/// select: constants and parameters. See rows/select.md.
#pragma once

#include "cuda/tile/types.h"

namespace tilewise::select {

enum class Type : int { bf16, fp16, float32 };
enum class Rule : int { top_k, mass, above };

struct Config {
  Type type = Type::bf16;  ///< of Q and K

  bool operator==(const Config&) const = default;
};

inline constexpr int kStatistics = 4;  ///< mean, maximum, minimum, variance
inline constexpr int kThreads = 128;
inline constexpr int kMostDim = 256;
inline constexpr int kMostColumns = 8192;

/// One block takes one block of tokens of a head.
struct PoolArgs {
  tile::View4 from;
  float* to = nullptr;  ///< (B, H, blocks, features)
  int heads = 1, tokens = 0, block = 1, blocks = 0, head_dim = 0, features = 0;
  float factor[kStatistics] = {};  ///< 0: the statistic is none of the features
  const int* lengths = nullptr;    ///< (B), may be null
  long long lengths_b = 0;
};

/// One block takes one row.
struct Args {
  const float* q = nullptr;  ///< (B, Hq, rows, features)
  const float* k = nullptr;  ///< (B, Hk, columns, features)
  int heads_q = 1, group = 1, rows = 0, columns = 0, features = 0;
  int seq_q = 0, seq_k = 0, block_q = 1, block_k = 1;
  const int* lengths = nullptr;  ///< (B), may be null
  long long lengths_b = 0;
  bool causal = false, keep_diagonal = true, keep_first = true;
  Rule rule = Rule::top_k;
  int count = 0;
  float mass = 1.0F, threshold = 0.0F;
  // What is made: a mask of bytes, or bits (B * Hq * rows, words) with the number in each row.
  unsigned char* mask = nullptr;
  unsigned* bits = nullptr;
  int* counts = nullptr;
  int words = 0;
  // For the scorers that look at tokens.
  const float* scores = nullptr;  ///< (B * Hq * rows, columns): logarithms of probabilities
  const float* lines = nullptr;   ///< (B * Hq, queries, 3 columns + 1)
  unsigned char* line = nullptr;  ///< (B * Hq, 3 columns + 1): whether it is taken
  int queries = 0;
};

/// What antidiagonals and lines read, and what they make: Args::scores, Args::lines.
struct ScorerArgs {
  tile::View4 q, k;
  float* to = nullptr;
  float scale = 1.0F;
  int heads_q = 1, group = 1, rows = 0, columns = 0, head_dim = 0;
  int seq_q = 0, seq_k = 0, block_q = 1, block_k = 1;
  int stride = 1, queries = 0;
  const int* lengths = nullptr;  ///< (B), may be null
  long long lengths_b = 0;
  bool causal = false;
};
inline constexpr int kMostTiles = 16384;  ///< of keys, by a row of tiles
inline constexpr int kMostTileElems = 4096;

/// From bits to a list.
struct ListArgs {
  const unsigned* bits = nullptr;
  const int* counts = nullptr;
  int* row_offsets = nullptr;  ///< (B * Hq, rows + 1)
  int* block_index = nullptr;
  int heads = 0, rows = 0, words = 0;  ///< heads: of all batch entries
};
inline constexpr int kScanThreads = 512;

// Bytes of shared memory.
inline constexpr int kPoolBytes = kThreads / 32 * kMostDim * 16;
inline constexpr int kScanBytes = kScanThreads * 4;

}  // namespace tilewise::select
