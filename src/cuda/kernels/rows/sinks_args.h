/// bwd_sinks: constants and parameters. See rows/README.md.
#pragma once

namespace tilewise::bwd_sinks {

struct Config {
  bool low = false;     ///< lse2 has a low part
  bool scaled = false;  ///< what is given for lse2 is to be multiplied by `factor`

  bool operator==(const Config&) const = default;
};

struct Args {
  const float* lse2 = nullptr;      ///< (B, Hq, rows_q): LSE * log2 e
  const float* lse2_low = nullptr;  ///< (B, Hq, rows_q): what rounding took from it, low only
  const float* delta = nullptr;     ///< (B, Hq, rows_q): rowsum(dO O) - dLSE
  const float* sinks = nullptr;     ///< (Hq)
  float* d_sinks = nullptr;         ///< (Hq)
  long long sinks_h = 0, d_sinks_h = 0;
  float factor = 1.0F;
  int batch = 0, heads = 1, seq_q = 0, rows_q = 0;
};

inline constexpr int kThreads = 512;

}  // namespace tilewise::bwd_sinks
