/// What the host and the device both know of a tensor map. Nothing is included.
#pragma once

namespace tilewise::tile {

/// CUtensorMap: opaque; made by the host (driver/tensor_map.h), read by the bulk tensor copy engine
/// out of the kernel's parameters.
struct alignas(64) TensorMapBytes {
  unsigned char bytes[128] = {};
};

}  // namespace tilewise::tile
