/// Addresses of LSE and its gradient, as arguments of backward kernels.
#pragma once

#include "problem/problem.h"

namespace tilewise::cuda::host {

/// The gradient of LSE, where the problem has one.
template <class Args>
void fill_d_lse(Args& args, const Problem& p) {
  if (!p.d_lse.defined()) return;
  args.d_lse = static_cast<const float*>(p.d_lse.data);
  args.d_lse_b = p.d_lse.strides[0];
  args.d_lse_h = p.d_lse.strides[1];
  args.d_lse_s = p.d_lse.strides[2];
}

/// LSE's strides, and its gradient. Gives LSE's elements.
template <class Args>
const float* fill_lse(Args& args, const Problem& p) {
  args.lse_b = p.lse.strides[0];
  args.lse_h = p.lse.strides[1];
  args.lse_s = p.lse.strides[2];
  fill_d_lse(args, p);
  return static_cast<const float*>(p.lse.data);
}

}  // namespace tilewise::cuda::host
