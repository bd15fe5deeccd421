/// A bias of the kernels for Hopper: as the copy engine reads it, and whether heads share it.
#pragma once

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
/// Whether the heads of a batch entry read the same elements, one for each query and key.
bool heads_share_bias(const Problem& problem);

}  // namespace tilewise::cuda
