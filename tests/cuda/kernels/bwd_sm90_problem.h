/// Problems for tests of the Hopper backward's host side.
#pragma once

#include "problem/problem.h"

namespace tilewise::cuda {

inline Tensor rows(std::int64_t batch, std::int64_t heads, std::int64_t seq, std::int64_t dim) {
  static std::byte memory[16];
  return Tensor::bshd(memory, DType::bfloat16, batch, seq, heads, dim, {DeviceType::cuda, 0});
}

inline Problem problem(std::int64_t seq, std::int64_t dim, bool causal) {
  Problem p;
  p.pass = Pass::backward;
  p.device = {DeviceType::cuda, 0};
  p.dtype = DType::bfloat16;
  p.batch = 16384 / seq;
  p.heads_q = p.heads_k = 2048 / dim;
  p.seq_q = p.seq_k = p.total_q = p.total_k = seq;
  p.head_dim = p.head_dim_v = dim;
  p.scale = 0.125F;
  if (causal) p.causal = Causal::bottom_right, p.right = 0;
  p.q = p.k = p.v = p.o = p.d_o = p.dq = p.dk = p.dv = rows(p.batch, p.heads_q, seq, dim);
  p.lse = Tensor::contiguous(p.q.data, DType::float32, {p.batch, p.heads_q, seq}, p.device);
  return p;
}

}  // namespace tilewise::cuda
