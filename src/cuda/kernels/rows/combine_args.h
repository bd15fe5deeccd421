/// combine: constants and parameters. See rows/README.md.
#pragma once

#include "cuda/tile/key_parts_args.h"
#include "cuda/tile/types.h"

namespace tilewise::combine {

enum class Output : int { bf16, fp16, float32 };

struct Config {
  Output output = Output::bf16;
  int head_dim_v = 64;  ///< padded
  /// Every batch entry has parts of its own; what has one part is done and is left alone.
  bool own_parts = false;
  int shares = 1;  ///< groups of lanes that share the parts of a row

  bool operator==(const Config&) const = default;
};

struct Args {
  const float* o = nullptr;  ///< (parts, rows, padded Dv): normalised partial results
  /// (parts, rows): the reference maximum in the log2 domain, -inf where the part saw no key and
  /// wrote no O, and the sum of 2^(s - m).
  const float* m = nullptr;
  const float* l = nullptr;
  int parts = 1;
  long long rows = 0;  ///< batch * heads * seq_q
  tile::View4 to;
  float* lse_to = nullptr;  ///< may be null
  long long lse_b = 0, lse_h = 0, lse_s = 0;
  float lowest = -0x1.fffffep127F;  ///< LSE where m is the least float: tile::least_bias()
  int heads = 1, seq_q = 0, head_dim_v = 0;
  tile::KeyParts keys;  ///< own_parts; `parts` is the most of them
};

inline constexpr int kThreads = 128;

}  // namespace tilewise::combine
