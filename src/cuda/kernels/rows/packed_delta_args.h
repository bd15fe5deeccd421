/// bwd_packed_delta: constants and parameters. See rows/README.md.
#pragma once

#include "cuda/tile/hopper/offsets_args.h"
#include "cuda/tile/types.h"

namespace tilewise::bwd_packed_delta {

using tile::Offsets;

struct Config {
  tile::Element element = tile::Element::bf16;
  int columns = 64;  ///< of Q and V at most: a multiple of 32

  bool operator==(const Config&) const = default;
};

/// Rows in memory: elements of a row lie side by side.
struct Args {
  tile::View4 q, k, v, o, d_o;
  const float* lse = nullptr;
  long long lse_h = 0, lse_s = 0;
  const float* d_lse = nullptr;  ///< may be null
  long long d_lse_h = 0, d_lse_s = 0;
  const float* alibi = nullptr;  ///< (B, Hq), may be null
  long long alibi_b = 0, alibi_h = 0;
  Offsets cu_q, cu_k;
  int sequences = 0, q_rows = 0, k_rows = 0;
  int heads_q = 1, group = 1, head_dim = 0, head_dim_v = 0;
  tile::Positions positions;
  float scale = 0.0F, softcap = 0.0F;
  float* delta = nullptr;  ///< (Hq, q_rows)
};

inline constexpr int kThreads = 128;
/// A row that sees more keys takes delta from O: what rounding took from that falls as 1 / keys.
inline constexpr int kMostKeys = 16;

}  // namespace tilewise::bwd_packed_delta
