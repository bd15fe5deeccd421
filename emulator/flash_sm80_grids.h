/// Shared memory, grids and arguments of the sm_80-class kernels whose lengths only the device
/// knows. The kernels are included before.
#pragma once

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

namespace {

constexpr double kBf16 = 1.2e-2, kExact = 2e-5;
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
double lse_error(const std::vector<double>& truth, const std::vector<float>& got) {
  double worst = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (static_cast<double>(got[i]) == truth[i]) continue;
    const double off = std::fabs(truth[i] - static_cast<double>(got[i]));
    if (!(off <= worst)) worst = off;
  }
  return worst;
}

}  // namespace
