#include "cuda/driver/tensor_map.h"

#include "cuda/driver/device.h"
#include "cuda/driver/driver.h"

namespace tilewise::cuda {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 32;
constexpr std::int64_t kMaxStride = std::int64_t{1} << 40;
constexpr int kMaxBox = 256;

/// CUtensorMapDataType; -1 for a type that has none.
int data_type(DType dtype) {
  switch (dtype) {
    case DType::uint8:
    case DType::boolean:
      return 0;
    case DType::int32:
      return 3;
    case DType::int64:
      return 5;
    case DType::float16:
      return 6;
    case DType::float32:
      return 7;
    case DType::float64:
      return 8;
    case DType::bfloat16:
      return 9;
  }
  return -1;
}

int swizzle_bytes(TensorMapSpec::Swizzle swizzle) {
  return swizzle == TensorMapSpec::Swizzle::none ? 0 : 16 << static_cast<int>(swizzle);
}

TensorMap encode(const TensorMapSpec& spec) {
  std::array<std::uint64_t, 5> sizes{}, strides{};
  std::array<std::uint32_t, 5> box{}, element_strides{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(spec.rank); ++i) {
    sizes[i] = static_cast<std::uint64_t>(spec.sizes[i]);
    box[i] = static_cast<std::uint32_t>(spec.box[i]);
    element_strides[i] = 1;
    if (i > 0) strides[i - 1] = static_cast<std::uint64_t>(spec.strides[i]);
  }
  TensorMap map{};
  const ContextScope scope(spec.device);  // the call wants one, though it touches no device
  check(driver().cuTensorMapEncodeTiled(
            &map, data_type(spec.dtype), static_cast<unsigned>(spec.rank),
            const_cast<void*>(spec.data), sizes.data(), strides.data(), box.data(),
            element_strides.data(), /*interleave=*/0, static_cast<int>(spec.swizzle),
            static_cast<int>(spec.promotion),
            /*fill=*/0),
        "cuTensorMapEncodeTiled", spec.device);
  return map;
}

/// The last few maps of a thread. A forward uses four tensors, a backward eight.
struct RecentMaps {
  static constexpr std::size_t kCount = 16;
  std::array<TensorMapSpec, kCount> specs{};
  std::array<TensorMap, kCount> maps{};
  std::size_t next = 0;
};

}  // namespace

std::string tensor_map_refusal(const TensorMapSpec& spec) {
  if (reinterpret_cast<std::uintptr_t>(spec.data) % 16 != 0) {
    return "its address is not a multiple of 16 bytes";
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(spec.rank); ++i) {
    if (spec.sizes[i] < 1 || spec.sizes[i] > kMaxSize) {
      return "an axis has " + std::to_string(spec.sizes[i]) + " elements (1 to 2^32 can be copied)";
    }
    if (spec.box[i] < 1 || spec.box[i] > kMaxBox) {
      return "a box of " + std::to_string(spec.box[i]) + " elements (1 to 256 can be copied)";
    }
    if (i == 0) continue;
    if (spec.strides[i] % 16 != 0 || spec.strides[i] < 0 || spec.strides[i] >= kMaxStride) {
      return "a stride is " + std::to_string(spec.strides[i]) +
             " bytes (multiples of 16 below 2^40 can be copied)";
    }
  }
  const std::int64_t row_bytes = spec.box[0] * dtype_bytes(spec.dtype);
  if (row_bytes % 16 != 0) {
    return "a box row is " + std::to_string(row_bytes) + " bytes (expected a multiple of 16)";
  }
  const int limit = swizzle_bytes(spec.swizzle);
  if (limit > 0 && row_bytes > limit) {
    return "a box row is " + std::to_string(row_bytes) + " bytes, its swizzle spans " +
           std::to_string(limit);
  }
  return {};
}

TensorMap tensor_map(const TensorMapSpec& spec) {
  thread_local RecentMaps recent;
  for (std::size_t i = 0; i < RecentMaps::kCount; ++i) {
    if (recent.specs[i] == spec) return recent.maps[i];
  }
  const TensorMap map = encode(spec);
  const std::size_t slot = recent.next++ % RecentMaps::kCount;
  recent.specs[slot] = spec;
  recent.maps[slot] = map;
  return map;
}

TensorMapSpec attention_tensor_map(const Tensor& tensor, int box_dim, int box_rows,
                                   TensorMapSpec::Swizzle swizzle) {
  const std::int64_t element = dtype_bytes(tensor.dtype);
  TensorMapSpec spec;
  spec.data = tensor.data;
  spec.device = tensor.device.index;
  spec.dtype = tensor.dtype;
  spec.rank = 4;
  spec.swizzle = swizzle;
  // Logical (B, H, S, D) to {D, H, S, B}.
  const std::array<std::size_t, 4> axes = {3, 1, 2, 0};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    spec.sizes[i] = tensor.sizes[axes[i]];
    spec.strides[i] = tensor.strides[axes[i]] * element;
  }
  spec.box = {box_dim, 1, box_rows, 1, 0};
  return spec;
}

}  // namespace tilewise::cuda
