#include "cuda/kernels/sm90_maps.h"

#include <cstring>

#include "cuda/driver/tensor_map.h"

namespace tilewise::cuda {
namespace {

TensorMapSpec map_spec(const Tensor& tensor, int box_rows) {
  TensorMapSpec spec = attention_tensor_map(tensor, /*box_dim=*/64, box_rows);
  for (std::size_t axis = 1; axis < 4; ++axis) {
    // The stride of an axis with one element is never used; it must be a legal one all the same.
    if (spec.sizes[axis] == 1) spec.strides[axis] = (spec.sizes[0] * 2 + 15) / 16 * 16;
  }
  return spec;
}

}  // namespace

std::string sm90_map_refusal(const char* name, const Tensor& tensor) {
  std::string reason;
  if (tensor.strides[3] != 1 && tensor.sizes[3] > 1) {
    reason = "its innermost stride is " + std::to_string(tensor.strides[3]) + " (expected 1)";
  } else {
    const TensorMapSpec spec = map_spec(tensor, 64);
    reason = tensor_map_refusal(spec);
    for (std::size_t axis = 1; axis < 4 && reason.empty(); ++axis) {
      if (spec.strides[axis] == 0) reason = "an axis of more than one element has stride 0";
    }
  }
  if (reason.empty()) return {};
  return std::string(name) + " cannot be copied by TMA: " + reason;
}

void sm90_set_map(tile::TensorMapBytes& to, const Tensor& tensor, int box_rows) {
  const TensorMap map = tensor_map(map_spec(tensor, box_rows));
  static_assert(sizeof(to) == sizeof(map));
  std::memcpy(to.bytes, map.bytes, sizeof(map));
}

}  // namespace tilewise::cuda
