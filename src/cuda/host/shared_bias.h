/// A bias of the kernels for Hopper: as the copy engine reads it, and whether heads share it.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/tile/options_args.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// Of a bias or its gradient: axes along which it broadcasts have one element.
Tensor stored_bias(const Tensor& bias);
/// Why the copy engine cannot read a bias. Empty if it can.
std::string bias_map_refusal(const Tensor& bias);
/// Boxes of `rows` queries x 64 keys. In a context: it makes a tensor map.
tile::BiasTiles bias_tiles(const Tensor& bias, int rows);
/// Whether the heads of a batch entry read the same elements, one for each query and key. They must
/// be more than stay in the L2 cache from one head to the next.
bool heads_share_bias(const Problem& problem);
/// Bytes of what a section of such heads reads again and again.
inline constexpr std::int64_t kSharedBiasSection = std::int64_t{32} << 20;

}  // namespace tilewise::cuda
