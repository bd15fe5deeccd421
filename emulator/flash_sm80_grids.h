/// Shared memory, grids and arguments of the emulated sm_80-class kernels. The kernels are included
/// before.
#pragma once

#include "cuda/kernels/rows/combine.cuh"
#include "flash_sm80_truth.h"

constexpr int kSharedBytes = 256 * 1024;
namespace tilewise::fwd_sm80 {
alignas(1024) unsigned char shared[kSharedBytes];
}
namespace tilewise::bwd_sm80 {
alignas(1024) unsigned char shared[kSharedBytes];
}
namespace tilewise::bwd_dq_sm80 {
alignas(1024) unsigned char shared[kSharedBytes];
}
namespace tilewise::bwd_dbias_sm80 {
alignas(1024) unsigned char shared[kSharedBytes];
}
namespace tilewise::bwd_sinks {
alignas(1024) unsigned char shared[kSharedBytes];
}

namespace {

constexpr double kBf16 = 1.2e-2, kFp16 = 1.5e-3, kExact = 2e-5;
const float kNan = std::numeric_limits<float>::quiet_NaN();

template <class Kernel>
void run_grid(long long blocks, int threads, unsigned char* shared, Kernel kernel) {
  emulator::shared_base = shared;
  for (long long b = 0; b < blocks; ++b) {
    std::memset(shared, 0xff, kSharedBytes);
    emulator::run_block(static_cast<unsigned>(b), static_cast<unsigned>(threads), kernel);
  }
}

tile::TileOrder order(int blocks, int heads, int parts = 1) {
  return {static_cast<unsigned>(blocks), static_cast<unsigned>(parts), static_cast<unsigned>(heads),
          2, true};
}
template <class Args>
void fill_shape(Args& a, const Shape& s) {
  a.heads_q = s.heads_q, a.group = s.heads_q / s.heads_k;
  a.scale = s.scale, a.scale_log2 = s.scale * tile::kLog2e;
  a.head_dim_v = s.dim;
  if (s.causal) a.positions.right = 0;
  a.dropout = dropout_bits(s);
}
template <class T>
tile::View4 view4(std::vector<T>& x, int rows, int dim) {
  return {x.data(), 0, static_cast<long long>(rows) * dim, dim, 1};
}

/// O and LSE of `parts` parts of the keys of `rows` queries, merged by combine.
template <int kWidth>
void merge_parts(const Shape& s, int rows, int parts, const std::vector<float>& o,
                 const std::vector<float>& statistics, const tile::View4& to, float* lse_to) {
  combine::Args a;
  a.o = o.data(), a.parts = parts;
  a.rows = static_cast<long long>(s.heads_q) * rows;
  a.m = statistics.data(), a.l = a.m + parts * a.rows;
  a.to = to, a.lse_to = lse_to, a.lse_h = rows, a.lse_s = 1;
  a.heads = s.heads_q, a.seq_q = rows, a.head_dim_v = s.dim;
  const long long threads = a.rows * combine::lanes(kWidth);
  run_grid((threads + combine::kThreads - 1) / combine::kThreads, combine::kThreads,
           fwd_sm80::shared, [&] {
             combine::kernel<combine::Config{combine::Output::float32, kWidth}>(a);
           });
}
double lse_error(const std::vector<double>& truth, const std::vector<float>& got) {
  double worst = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (static_cast<double>(got[i]) == truth[i]) continue;  // both -inf, say
    const double off = std::fabs(truth[i] - static_cast<double>(got[i]));
    if (!(off <= worst)) worst = off;
  }
  return worst;
}

}  // namespace
