/// Tensor maps for the bulk tensor copy engine (sm_90 and newer). PTX ISA, "Tensor-map"; CUDA
/// driver API, cuTensorMapEncodeTiled.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "cuda/driver/cuda_types.h"
#include "tilewise/tensor.h"

namespace tilewise::cuda {

/// What a map describes. Axes are fastest first; axis 0 is contiguous. Out-of-bounds elements read
/// as 0 and are not written.
struct TensorMapSpec {
  enum class Swizzle : std::uint8_t { none = 0, bytes32 = 1, bytes64 = 2, bytes128 = 3 };
  /// What L2 fetches at least where a box asks for less. NOTE: decoding reads memory 3 to 5 %
  /// faster with 128 bytes.
  enum class Promotion : std::uint8_t { bytes128 = 2, bytes256 = 3 };
  const void* data = nullptr;  ///< 16-byte aligned
  int device = 0;
  DType dtype = DType::bfloat16;
  int rank = 4;
  std::array<std::int64_t, 5> sizes{};    ///< elements, each in [1, 2^32]
  std::array<std::int64_t, 5> strides{};  ///< bytes; [0] is not read; multiples of 16, below 2^40
  std::array<std::int32_t, 5> box{};      ///< elements, each in [1, 256]
  Swizzle swizzle = Swizzle::bytes128;
  Promotion promotion = Promotion::bytes256;
  bool operator==(const TensorMapSpec&) const = default;
};

/// Empty when TMA can express the tensor, else the reason, in words for the user. Looks at the spec
/// only.
std::string tensor_map_refusal(const TensorMapSpec& spec);

/// The map for a spec. Kept per thread for the last few distinct specs: a repeated call costs a
/// comparison. Precondition: tensor_map_refusal(spec) is empty. Throws DeviceError.
TensorMap tensor_map(const TensorMapSpec& spec);

/// The usual map of attention: a tensor with logical axes (B, H, S, D) and innermost stride 1 as
/// axes {D, H, S, B} with box {box_dim, 1, box_rows, 1}; coordinates are (d, h, s, b).
TensorMapSpec attention_tensor_map(
    const Tensor& tensor, int box_dim, int box_rows,
    TensorMapSpec::Swizzle swizzle = TensorMapSpec::Swizzle::bytes128);

}  // namespace tilewise::cuda
