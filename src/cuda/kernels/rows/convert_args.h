/// bwd_convert: constants and parameters. See rows/README.md.
#pragma once

#include "cuda/tile/sequences_args.h"
#include "cuda/tile/types.h"

namespace tilewise::bwd_convert {

enum class Type : int { bf16, fp16, float32 };

struct Config {
  Type type = Type::bf16;  ///< of the gradients
  bool packed = false;     ///< of packed sequences: Args are RaggedArgs

  bool operator==(const Config&) const = default;
};

/// One gradient.
struct Source {
  const float* sums = nullptr;  ///< (parts, B, H, padded_rows, padded) in fragment order
  int parts = 1;                ///< added in their order
  tile::View4 to;
  bool vectors = false;  ///< rows of `to` are 16-byte aligned with unit stride
  float factor = 1.0F;
  int heads = 1, rows = 0, padded_rows = 0, cols = 0, padded = 0;
  long long items = 0;        ///< B * H * padded_rows / 16 * padded / 8 * 8, of one part
  long long first_block = 0;  ///< of the grid
};

struct Args {
  static constexpr int kMaxSources = 3;
  Source sources[kMaxSources];
  int count = 0;
};

/// One source: rows of packed sequences in blocks of kScaleRows as tile/sequences.cuh counts them.
struct RaggedArgs {
  Args args;
  tile::Sequences sequences;
};

inline constexpr int kThreads = 256;

}  // namespace tilewise::bwd_convert
