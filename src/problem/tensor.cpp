#include "tilewise/tensor.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "problem/arguments.h"

namespace tilewise {

std::int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::int64:
      return 8;
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::bfloat16:
    case DType::float16:
      return 2;
    case DType::boolean:
    case DType::uint8:
      return 1;
  }
  return 0;
}

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return "float64";
    case DType::float32:
      return "float32";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float16:
      return "float16";
    case DType::boolean:
      return "bool";
    case DType::uint8:
      return "uint8";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
  }
  return "unknown";
}

bool is_floating(DType dtype) {
  return dtype == DType::float64 || dtype == DType::float32 || dtype == DType::bfloat16 ||
         dtype == DType::float16;
}

std::string device_name(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

std::int64_t Tensor::numel() const {
  const auto end = sizes.begin() + std::clamp(rank, 0, kMaxRank);
  if (rank <= 0 || std::any_of(sizes.begin(), end, [](std::int64_t n) { return n <= 0; })) return 0;
  // A tensor that no check has seen may have more elements than 64 bits count.
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return std::accumulate(
      sizes.begin(), end, std::int64_t{1},
      [](std::int64_t n, std::int64_t size) { return n > kMost / size ? kMost : n * size; });
}

std::string Tensor::describe() const {
  if (!defined()) return "not given";
  return std::string(dtype_name(dtype)) + " " +
         arguments::shape_text(sizes.data(), std::min(rank, kMaxRank)) + " on " +
         device_name(device);
}

Tensor Tensor::contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> sizes,
                          Device device) {
  Tensor t{.data = data, .dtype = dtype, .device = device, .rank = static_cast<int>(sizes.size())};
  if (t.rank > kMaxRank) {
    arguments::fail_value("sizes", std::to_string(t.rank) + " axes", "a Tensor has at most 4");
  }
  std::copy(sizes.begin(), sizes.end(), t.sizes.begin());
  for (const std::int64_t size : sizes) {
    if (size < 0) arguments::fail_value("sizes", std::to_string(size), "a size must be >= 0");
  }
  arguments::require_countable("sizes", t);
  std::int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    const auto axis = static_cast<std::size_t>(i);
    t.strides[axis] = stride;
    stride *= t.sizes[axis];
  }
  return t;
}

Tensor Tensor::bhsd(void* data, DType dtype, std::int64_t batch, std::int64_t heads,
                    std::int64_t seq, std::int64_t dim, Device device) {
  return contiguous(data, dtype, {batch, heads, seq, dim}, device);
}

Tensor Tensor::bshd(void* data, DType dtype, std::int64_t batch, std::int64_t seq,
                    std::int64_t heads, std::int64_t dim, Device device) {
  Tensor t = contiguous(data, dtype, {batch, seq, heads, dim}, device);
  std::swap(t.sizes[1], t.sizes[2]);
  std::swap(t.strides[1], t.strides[2]);
  return t;
}

Tensor Tensor::packed(void* data, DType dtype, std::int64_t total, std::int64_t heads,
                      std::int64_t dim, Device device) {
  return bshd(data, dtype, 1, total, heads, dim, device);
}

}  // namespace tilewise
