#include "cuda/host/tma_maps.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "problem/blocks.h"

namespace tilewise::cuda {
namespace {

/// What the copy engine writes at least.
constexpr std::int64_t kUnitBytes = 16;

}  // namespace

TensorMapSpec sm90_map_spec(const Tensor& tensor, int box_rows, bool packed) {
  TensorMapSpec spec = attention_tensor_map(tensor, /*box_dim=*/64, box_rows);
  if (packed) spec.sizes[3] = 1;
  for (std::size_t axis = 1; axis < 4; ++axis) {
    // The stride of an axis with one element is never used; it must be a legal one all the same.
    if (spec.sizes[axis] == 1) {
      spec.strides[axis] = round_up(spec.sizes[0] * 2, kUnitBytes);
    }
  }
  return spec;
}

TensorMapSpec sm90_ragged_map(TensorMapSpec spec, std::int64_t rows, int heads) {
  spec.rank = 5;
  spec.data = static_cast<const std::byte*>(spec.data) - rows * spec.strides[2];
  spec.sizes = {spec.sizes[0], spec.sizes[1], rows, rows + spec.sizes[2] + 1, spec.sizes[3]};
  spec.strides = {0, spec.strides[1], spec.strides[2], spec.strides[2], spec.strides[3]};
  spec.box = {spec.box[0], heads, spec.box[2], 1, 1};
  return spec;
}

TensorMapSpec sm90_panel_map(const Tensor& tensor, int rows, int panels) {
  const TensorMapSpec plain = sm90_map_spec(tensor, rows);
  TensorMapSpec spec = plain;
  const std::int64_t columns = std::min<std::int64_t>(plain.sizes[0], 64);
  const std::int64_t all = plain.sizes[0] / columns;
  spec.rank = 5;
  spec.sizes = {columns, plain.sizes[2], all, plain.sizes[1], plain.sizes[3]};
  spec.strides = {0, plain.strides[2], 128, plain.strides[1], plain.strides[3]};
  spec.box = {64, rows, panels > 0 ? panels : static_cast<std::int32_t>(all), 1, 1};
  return spec;
}

TensorMapSpec sm90_row_map(const Tensor& tensor, int rows, int panels) {
  TensorMapSpec spec = sm90_panel_map(tensor, rows, panels);
  std::swap(spec.sizes[1], spec.sizes[2]);
  std::swap(spec.strides[1], spec.strides[2]);
  std::swap(spec.box[1], spec.box[2]);
  return spec;
}

std::string sm90_map_refusal(const char* name, const Tensor& tensor, Sm90Access access,
                             bool packed) {
  std::string reason;
  const std::int64_t row_bytes = tensor.sizes[3] * dtype_bytes(tensor.dtype);
  if (tensor.strides[3] != 1 && tensor.sizes[3] > 1) {
    reason = "its innermost stride is " + std::to_string(tensor.strides[3]) + " (expected 1)";
  } else if (access == Sm90Access::write && row_bytes % kUnitBytes != 0) {
    // NOTE: a row's last unit is written whole, what lies behind the row with it (seen on an H200).
    reason = "its rows are " + std::to_string(row_bytes) + " bytes (multiples of " +
             std::to_string(kUnitBytes) + " can be written)";
  } else {
    const TensorMapSpec spec = sm90_map_spec(tensor, 64, packed);
    reason = tensor_map_refusal(spec);
    for (std::size_t axis = 1; axis < 4 && reason.empty(); ++axis) {
      if (spec.strides[axis] == 0) reason = "an axis with more than one element has stride 0";
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
