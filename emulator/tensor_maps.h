/// Tensor maps as the emulator's bulk copies read them.
#pragma once

#include <cstring>

#include "cuda/driver/tensor_map.h"
#include "cuda/tile/hopper/tensor_map.h"

namespace {

void set_map(tilewise::tile::TensorMapBytes& to, const tilewise::cuda::TensorMapSpec& spec) {
  emulator::Box box{};
  box.data = static_cast<unsigned char*>(const_cast<void*>(spec.data));
  box.rank = spec.rank;
  for (int axis = 0; axis < spec.rank; ++axis) {
    box.sizes[axis] = spec.sizes[axis];
    box.strides[axis] = spec.strides[axis];
    box.box[axis] = spec.box[axis];
  }
  std::memcpy(to.bytes, &box, sizeof(box));
}

}  // namespace
