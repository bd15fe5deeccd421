/// Score modifications, masks and the online softmax on score fragments of a warp.
///
/// A warp holds kM x kN accumulator tiles of 16 x 8 scores: thread l has rows 16m + l/4 (+8) and
/// columns 8n + 2(l%4) (+1). Row r of 2*kM counts (m, half).
#pragma once

#include "cuda/tile/order.cuh"

namespace tilewise::tile {

/// Row maxima move only when they grew by this (log2): P stays below 2^kSlack and most rescalings
/// of O fall away.
inline constexpr float kSlack = 8.0F;
/// Exponents above this are taken from a rounded product, so that the largest score gives exactly
/// 2^0. Below it a fused multiply-add is exact enough: its argument is off by less than 2^-3.
inline constexpr float kHuge = 2097152.0F;

template <int kM>
struct RowStatistics {
  float m[2 * kM];  ///< reference maximum, log2 domain; -inf until a key was seen
  float l[2 * kM];  ///< sum of 2^(s - m) of this thread's columns

  __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) m[r] = -infinity(), l[r] = 0.0F;
  }
};

/// Softcap, ALiBi and scale: raw scores to logits in the log2 domain. `distance` is i + Sk - Sq - j
/// at the thread's first element.
struct ScoreModification {
  float scale;    ///< of raw scores to logits
  float softcap;  ///< 0 = off
  float slope;    ///< 0 = off

  __forceinline__ ScoreModification() = default;
  /// From a kernel's arguments, raw scores being `factor` smaller than theirs.
  template <class Args>
  __forceinline__ ScoreModification(const Args& args, float factor, int batch, int head)
      : scale(args.scale * factor), softcap(args.softcap), slope(0.0F) {
    if (args.alibi != nullptr) slope = args.alibi[batch * args.alibi_b + head * args.alibi_h];
  }

  /// log2 e times the logit of one score, less `base`. `gradient` becomes d logit / d (scale *
  /// raw). NOTE: the base goes off before anything large is rounded: with the row's LSE as base,
  /// what is left is small where it counts, and so is its rounding.
  __forceinline__ float logit(float raw, int distance, float base, float& gradient) const {
    float x;
    gradient = 1.0F;
    if (softcap != 0.0F) {
      const float t = tanh_exact(raw * scale / softcap);
      x = __fmaf_rn(softcap * kLog2e, t, -base);
      gradient = 1.0F - t * t;
    } else {
      x = __fmaf_rn(raw, scale * kLog2e, -base);
    }
    if (slope != 0.0F) x = __fmaf_rn(slope * -kLog2e, fabsf(static_cast<float>(distance)), x);
    return x;
  }
};

/// (F1 to F3) Logits of a whole fragment. `i0`, `j0`: row and column of the fragment's corner,
/// `shift` = Sk - Sq.
template <int kM, int kN>
__forceinline__ void modify_scores(Acc (&S)[kM][kN], const ScoreModification& mod, int i0, int j0,
                                   int shift, int lane) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = i0 + 16 * m + lane / 4 + 8 * (e / 2);
        const int j = j0 + 8 * n + 2 * (lane % 4) + e % 2;
        float unused;
        S[m][n][e] = mod.logit(S[m][n][e], i + shift - j, 0.0F, unused);
      }
    }
  }
}

/// (F4) Hidden scores become -inf: replaced, so that nothing of a hidden key leaks. CONTRACT 4, 5,
/// 10
template <int kM, int kN>
__forceinline__ void mask_scores(Acc (&S)[kM][kN], const Diagonals& d, int seq_k, int i0, int j0,
                                 int lane) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = i0 + 16 * m + lane / 4 + 8 * half;
      const int begin = i + d.low - j0 - 2 * (lane % 4);
      const int end = min(i + d.high, seq_k) - j0 - 2 * (lane % 4);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int j = 8 * n + e;
          if (j < begin || j >= end) S[m][n][2 * half + e] = -infinity();
        }
      }
    }
  }
}

/// One step of the online softmax: S becomes P = 2^(scale * S - m) and l grows by its row sums;
/// when a maximum moved by more than kSlack, m moves and `rescale(r, alpha)` must multiply row r of
/// O. `kBias` is added to the exponent (and cancels in O and LSE): it lifts P into the range of the
/// operand's type.
template <int kBias, int kM, int kN, class Rescale>
__forceinline__ void softmax_step(Acc (&S)[kM][kN], RowStatistics<kM>& rows, float scale,
                                  Rescale rescale) {
  float grown[2 * kM];
  bool moves = false, huge = false;
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    float x = fmaxf(S[r / 2][0][2 * (r % 2)], S[r / 2][0][2 * (r % 2) + 1]);
#pragma unroll
    for (int n = 1; n < kN; ++n) {
      x = fmaxf(x, fmaxf(S[r / 2][n][2 * (r % 2)], S[r / 2][n][2 * (r % 2) + 1]));
    }
    grown[r] = quad_max(x) * scale;  // (F7) rowmax(S)
    moves |= grown[r] > rows.m[r] + kSlack;
    huge |= fabsf(grown[r]) > kHuge && grown[r] != -infinity();
  }
  if (__any_sync(~0U, moves)) {
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) {
      const float m = fmaxf(rows.m[r], grown[r]);  // (F7) m_new = max(m, rowmax(S))
      const float alpha = m == -infinity() ? 1.0F : exp2_approx(rows.m[r] - m);
      rows.m[r] = m;
      rows.l[r] *= alpha;
      rescale(r, alpha);
    }
  }
  if (__any_sync(~0U, huge)) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) S[m][n][e] = __fmul_rn(S[m][n][e], scale);
      }
    }
    scale = 1.0F;
  }
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    // Nothing seen yet: every score is -inf, and so 2^(-inf - 0) = 0. CONTRACT 3
    const float m = rows.m[r] == -infinity() ? 0.0F : rows.m[r] - kBias;
    float sum[2] = {0.0F, 0.0F};
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& s = S[r / 2][n][2 * (r % 2) + e];
        s = exp2_approx(__fmaf_rn(s, scale, -m));  // (F8) P = exp(S - m)
        sum[e] += s;
      }
    }
    rows.l[r] += sum[0] + sum[1];  // (F9) l
  }
}

// ---- backward

/// (F1 to F3) The logits of a fragment as modify_scores makes them, and what they change by the raw
/// scores. With kTransposed rows are keys from j0 on and columns queries from i0 on.
template <bool kTransposed, int kM, int kN>
__forceinline__ void differentiate_scores(Acc (&S)[kM][kN], Acc (&G)[kM][kN],
                                          const ScoreModification& mod, int i0, int j0, int shift,
                                          int lane) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = 16 * m + lane / 4 + 8 * (e / 2), column = 8 * n + 2 * (lane % 4) + e % 2;
        const int i = i0 + (kTransposed ? column : row), j = j0 + (kTransposed ? row : column);
        S[m][n][e] = mod.logit(S[m][n][e], i + shift - j, 0.0F, G[m][n][e]);
      }
    }
  }
}

/// What a score function gave, in the log2 domain less lse2. Rows that see nothing and rows that
/// pad the last block have the probability 0, whatever the function says.
/// kShifts: logits may be huge, and are rounded before lse2 is subtracted (see with_bias).
template <bool kShifts>
__forceinline__ float less_lse2(float logit, float lse2) {
  if (lse2 == infinity()) return -infinity();
  return kShifts ? __fmul_rn(logit, kLog2e) - lse2 : __fmaf_rn(logit, kLog2e, -lse2);
}

/// Hidden scores of a transposed fragment (rows are keys j0 .., columns queries i0 ..) become -inf.
template <int kM, int kN>
__forceinline__ void mask_transposed(Acc (&S)[kM][kN], const Diagonals& d, int seq_k, int j0,
                                     int i0, int lane) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int i = i0 + 8 * n + 2 * (lane % 4) + e;
      const int begin = i + d.low - j0 - lane / 4, end = min(i + d.high, seq_k) - j0 - lane / 4;
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int j = 16 * m + 8 * half;
          if (j < begin || j >= end) S[m][n][2 * half + e] = -infinity();
        }
      }
    }
  }
}

/// (B1) P = exp(min(S - LSE, 0)), all in the log2 domain. CONTRACT 11
/// `low` is what rounding took from lse2.
__forceinline__ float probability(float s_less_lse2, float low) {
  return exp2_approx(min_nan(s_less_lse2 - low, 0.0F));
}

/// P is at most 1: two-plane operands hold P * 2^14.
inline constexpr float kProbabilityScale = 0x1p14F;

/// Multiplies a fragment by a power of two that brings its largest magnitude in the warp to [2^14,
/// 2^15), and gives the inverse.
template <int kM, int kN>
__forceinline__ float normalise(Acc (&S)[kM][kN]) {
  float top = 0.0F;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) top = fmaxf(top, fabsf(S[m][n][e]));
    }
  }
  const float scale = power_below(warp_max(top)) * 0x1p-14F;
  multiply(S, power_inverse(scale));
  return scale;
}

}  // namespace tilewise::tile
