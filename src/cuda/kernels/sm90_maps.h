/// Tensor maps of the Hopper kernels: rows copied in panels of 64 columns.
#pragma once

#include <string>

#include "cuda/tile/tensor_map.h"
#include "tilewise/tensor.h"

namespace tilewise::cuda {

/// Why the copy engine cannot read or write a tensor; empty when it can.
std::string sm90_map_refusal(const char* name, const Tensor& tensor);

void sm90_set_map(tile::TensorMapBytes& to, const Tensor& tensor, int box_rows);

}  // namespace tilewise::cuda
