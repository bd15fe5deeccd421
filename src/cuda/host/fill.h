/// Tensors of rows, heads and batch entries as fields of a kernel's Args, which have the same names
/// everywhere. An optional tensor that the problem does not have leaves its fields as they are.
#pragma once

#include <algorithm>
#include <limits>

#include "problem/problem.h"

namespace tilewise::cuda::host {

/// A factor of scores, cut to what float32 holds: infinity times a score of 0 would be NaN.
inline float finite(double factor) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(factor, -kMost, kMost));
}

template <class Args>
void fill_key_lengths(Args& args, const Problem& p) {
  if (!p.key_lengths.defined()) return;
  args.key_lengths = static_cast<const int*>(p.key_lengths.data);
  args.key_lengths_b = p.key_lengths.strides[0];
}

/// cu_seqlens in a kernel's struct of data, stride and type.
template <class Offsets>
void fill_offsets(Offsets& offsets, const Tensor& cu_seqlens) {
  offsets = {cu_seqlens.data, cu_seqlens.strides[0], cu_seqlens.dtype == DType::int64};
}

/// Lengths that the Hopper kernels look up on the device: of keys, and of packed sequences.
template <class Args>
void fill_sm90_lengths(Args& args, const Problem& p) {
  fill_key_lengths(args, p);
  if (p.key_lengths.defined()) args.k_rows = static_cast<int>(p.seq_k);
  if (p.packed) {
    fill_offsets(args.cu_q, p.cu_seqlens_q);
    args.sequences = static_cast<int>(p.batch);
    args.q_rows = static_cast<int>(p.total_q);
  }
  if (p.packed_keys()) {
    fill_offsets(args.cu_k, p.cu_seqlens_k);
    args.k_rows = static_cast<int>(p.total_k);
  }
}

template <class Args>
void fill_alibi(Args& args, const Problem& p) {
  if (!p.alibi_slopes.defined()) return;
  args.alibi = static_cast<const float*>(p.alibi_slopes.data);
  args.alibi_b = p.alibi_slopes.strides[0];
  args.alibi_h = p.alibi_slopes.strides[1];
}

template <class Args>
void fill_sinks(Args& args, const Problem& p) {
  if (!p.sinks.defined()) return;
  args.sinks = static_cast<const float*>(p.sinks.data);
  args.sinks_h = p.sinks.strides[0];
}

/// LSE as forward writes it, where the caller wants it.
template <class Args>
void fill_lse_output(Args& args, const Problem& p) {
  if (!p.lse.defined()) return;
  args.lse = static_cast<float*>(p.lse.data);
  args.lse_b = p.lse.strides[0];
  args.lse_h = p.lse.strides[1];
  args.lse_s = p.lse.strides[2];
}

/// The gradient of LSE.
template <class Args>
void fill_d_lse(Args& args, const Problem& p) {
  if (!p.d_lse.defined()) return;
  args.d_lse = static_cast<const float*>(p.d_lse.data);
  args.d_lse_b = p.d_lse.strides[0];
  args.d_lse_h = p.d_lse.strides[1];
  args.d_lse_s = p.d_lse.strides[2];
}

/// LSE's strides as backward reads it, and its gradient. Gives LSE's elements.
template <class Args>
const float* fill_lse(Args& args, const Problem& p) {
  args.lse_b = p.lse.strides[0];
  args.lse_h = p.lse.strides[1];
  args.lse_s = p.lse.strides[2];
  fill_d_lse(args, p);
  return static_cast<const float*>(p.lse.data);
}

}  // namespace tilewise::cuda::host
