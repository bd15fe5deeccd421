/// Bias and bool mask: what a score takes from tensors that hold an element for every pair.
#pragma once

#include "cuda/tile/math.cuh"
#include "cuda/tile/mma.cuh"

namespace tilewise::tile {

/// The tensors of one (batch, head).
struct PairTerms {
  const void* bias;
  const unsigned char* mask;
  i64 bias_s, bias_d, mask_s, mask_d;
  BiasType type;
  int rows, keys;  ///< of the problem: nothing is read beyond

  __forceinline__ PairTerms(const PairTensors& t, int batch, int head, int seq_q, int seq_k)
      : bias_s(t.bias.stride_s),
        bias_d(t.bias.stride_d),
        mask_s(t.mask.stride_s),
        mask_d(t.mask.stride_d),
        type(t.type),
        rows(seq_q),
        keys(seq_k) {
    const i64 bytes = t.type == BiasType::float32 ? 4 : 2;
    bias = static_cast<const unsigned char*>(t.bias.data) +
           bytes * (batch * t.bias.stride_b + head * t.bias.stride_h);
    mask = t.mask.data == nullptr ? nullptr
                                  : static_cast<const unsigned char*>(t.mask.data) +
                                        batch * t.mask.stride_b + head * t.mask.stride_h;
  }

  __forceinline__ float bias_at(int i, int j) const {
    const i64 at = i * bias_s + j * bias_d;
    if (type == BiasType::float32) return static_cast<const float*>(bias)[at];
    const u32 bits = static_cast<const unsigned short*>(bias)[at];
    return type == BiasType::bf16 ? widen<Element::bf16>(bits) : widen<Element::fp16>(bits);
  }

  /// (F2, F4) `s` is the logit of the pair, log2 domain. A hidden score is replaced; a finite bias,
  /// however negative, hides nothing. CONTRACT 3, 10
  __forceinline__ float apply(float s, int i, int j) const {
    if (i >= rows || j >= keys) return s;
    if (mask != nullptr && mask[i * mask_s + j * mask_d] == 0) return -infinity();
    if (type == BiasType::none) return s;
    const float b = bias_at(i, j);
    if (b == -infinity()) return b;
    const float sum = __fmaf_rn(b, kLog2e, s);
    return sum == -infinity() && s != -infinity() ? kLowest : sum;
  }
};

/// On a fragment whose corner is row `row0`, column `col0`: rows are queries, or keys when
/// `kTransposed`.
template <bool kTransposed, int kM, int kN>
__forceinline__ void apply_pairs(Acc (&S)[kM][kN], const PairTerms& terms, int row0, int col0,
                                 int lane) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = row0 + 16 * m + lane / 4 + 8 * (e / 2);
        const int col = col0 + 8 * n + 2 * (lane % 4) + e % 2;
        S[m][n][e] = terms.apply(S[m][n][e], kTransposed ? col : row, kTransposed ? row : col);
      }
    }
  }
}

}  // namespace tilewise::tile
