/// The layers' attention: the library's own, by its public verbs.
#pragma once

#include "layers/run.h"
#include "tilewise/attention.h"

namespace tilewise::asam {

/// Heads [batch, tokens, heads, dim] inside rows of `row` elements: logical axes (B, heads, n,
/// dim).
template <class T>
Tensor head_view(const Run<T>& run, Stored<T> data, std::int64_t heads, std::int64_t head_stride,
                 std::int64_t row) {
  Tensor t;
  t.data = data.data();
  t.dtype = data.half != nullptr ? run.config.compute : run.config.dtype;
  t.device = run.config.device;
  t.rank = 4;
  t.sizes = {run.batch, heads, run.tokens, run.config.head_dim};
  t.strides = {run.tokens * row, head_stride, row, 1};
  return t;
}

/// What every attention of a pass has: the batch's lengths, and its mask where it is given.
template <class T>
AttentionSpec visible_spec(const Run<T>& run, const Tensor& mask) {
  AttentionSpec spec;
  spec.mask = mask;
  if (run.lengths != nullptr) {
    spec.key_lengths = Tensor::contiguous(const_cast<std::int32_t*>(run.lengths), DType::int32,
                                          {run.batch}, run.config.device);
  }
  return spec;
}

template <class T>
void attend(const Run<T>& run, const ForwardTensors& tensors, const AttentionSpec& spec);
template <class T>
void attend_backward(const Run<T>& run, const BackwardTensors& tensors, const AttentionSpec& spec);

}  // namespace tilewise::asam
