/// bwd_delta: constants and parameters. See rows/README.md.
#pragma once

#include "cuda/tile/sequences_args.h"
#include "cuda/tile/types.h"

namespace tilewise::bwd_delta {

enum class Type : int { bf16, fp16, float32 };

struct Config {
  Type type = Type::bf16;  ///< of O and dO
  int head_dim_v = 64;     ///< padded
  bool packed = false;     ///< sequences beside each other: Args are RaggedArgs

  bool operator==(const Config&) const = default;
};

struct Args {
  tile::View4 o, d_o;
  bool vectors = false;  ///< rows of both are 16-byte aligned with unit stride
  const float* lse = nullptr;
  long long lse_b = 0, lse_h = 0, lse_s = 0;
  const float* d_lse = nullptr;  ///< may be null
  long long d_lse_b = 0, d_lse_h = 0, d_lse_s = 0;
  const float* sinks = nullptr;  ///< (Hq), may be null
  long long sinks_h = 0;
  float* lse2 = nullptr;      ///< (B, Hq, rows_q)
  float* lse2_low = nullptr;  ///< (B, Hq, rows_q) becomes zero; may be null
  float* delta = nullptr;     ///< (B, Hq, rows_q)
  float* clear = nullptr;     ///< (B, Hq, rows_q, clear_cols) becomes zero; may be null
  int clear_cols = 0;         ///< a multiple of 16
  int heads = 1, seq_q = 0, rows_q = 0, head_dim_v = 0;
  long long rows = 0;  ///< B * Hq * rows_q
};

/// Packed sequences, one entry of a batch: their rows go to blocks of kScaleRows rows as
/// tile/sequences.cuh counts them, rows_q in all.
struct RaggedArgs {
  Args args;
  tile::Sequences queries;
};

inline constexpr int kThreads = 256;

}  // namespace tilewise::bwd_delta
