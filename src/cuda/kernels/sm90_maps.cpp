#include "cuda/kernels/sm90_maps.h"

#include <cstring>

namespace tilewise::cuda {

TensorMapSpec sm90_map_spec(const Tensor& tensor, int box_rows, bool packed) {
  TensorMapSpec spec = attention_tensor_map(tensor, /*box_dim=*/64, box_rows);
  if (packed) spec.sizes[3] = 1;
  for (std::size_t axis = 1; axis < 4; ++axis) {
    // The stride of an axis with one element is never used; it must be a legal one all the same.
    if (spec.sizes[axis] == 1) spec.strides[axis] = (spec.sizes[0] * 2 + 15) / 16 * 16;
  }
  return spec;
}

std::string sm90_map_refusal(const char* name, const Tensor& tensor, bool packed) {
  std::string reason;
  if (tensor.strides[3] != 1 && tensor.sizes[3] > 1) {
    reason = "its innermost stride is " + std::to_string(tensor.strides[3]) + " (expected 1)";
  } else {
    const TensorMapSpec spec = sm90_map_spec(tensor, 64, packed);
    reason = tensor_map_refusal(spec);
    for (std::size_t axis = 1; axis < 4 && reason.empty(); ++axis) {
      if (spec.strides[axis] == 0) reason = "an axis of more than one element has stride 0";
    }
  }
  if (reason.empty()) return {};
  return std::string(name) + " cannot be copied by TMA: " + reason;
}

void sm90_set_map(tile::TensorMapBytes& to, const TensorMapSpec& spec) {
  const TensorMap map = tensor_map(spec);
  static_assert(sizeof(to) == sizeof(map));
  std::memcpy(to.bytes, map.bytes, sizeof(map));
}

}  // namespace tilewise::cuda
