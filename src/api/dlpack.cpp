#include "tilewise/dlpack.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "problem/arguments.h"

namespace tilewise::dlpack {
namespace {

[[noreturn]] void refuse(const char* name, const std::string& what) {
  throw InvalidArgument(std::string(name) + " (DLPack) " + what);
}

struct TypeRow {
  DType dtype;
  TypeCode code;
  std::uint8_t bits;
};
constexpr TypeRow kTypes[] = {
    {DType::float64, TypeCode::floating, 64}, {DType::float32, TypeCode::floating, 32},
    {DType::float16, TypeCode::floating, 16}, {DType::bfloat16, TypeCode::bfloat, 16},
    {DType::boolean, TypeCode::boolean, 8},   {DType::uint8, TypeCode::unsigned_integer, 8},
    {DType::int32, TypeCode::integer, 32},    {DType::int64, TypeCode::integer, 64},
};

DType dtype_of(const DataType& type, const char* name) {
  for (const TypeRow& row : kTypes) {
    if (row.code == type.code && row.bits == type.bits && type.lanes == 1) return row.dtype;
  }
  refuse(name,
         "has type code " + std::to_string(static_cast<int>(type.code)) + " with " +
             std::to_string(type.bits) + " bits and " + std::to_string(type.lanes) +
             " lanes: expected float64, float32, float16, bfloat16, bool, uint8, int32 or int64");
}

DataType type_of(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return {row.code, row.bits, 1};
  }
  return {};
}

Device device_of(const DeviceId& id, const char* name) {
  switch (id.type) {
    case DeviceCode::cpu:
    case DeviceCode::cuda_host:  // pinned host memory
      return {DeviceType::cpu, 0};
    case DeviceCode::cuda:
    case DeviceCode::cuda_managed:
      return {DeviceType::cuda, id.index};
  }
  refuse(name, "is on device type " + std::to_string(static_cast<int>(id.type)) +
                   ": expected CPU (1) or CUDA (2)");
}

/// What a managed view of ours points to.
struct Owned {
  ManagedViewVersioned managed;
  std::array<std::int64_t, Tensor::kMaxRank> sizes{};
  std::array<std::int64_t, Tensor::kMaxRank> strides{};
  void* context = nullptr;
  void (*release)(void*) = nullptr;
};

void delete_owned(ManagedViewVersioned* self) {
  const std::unique_ptr<Owned> owned(static_cast<Owned*>(self->context));
  if (owned->release != nullptr) owned->release(owned->context);
}

}  // namespace

Tensor from_dlpack(const View& view, const char* name) {
  if (view.rank < 1 || view.rank > Tensor::kMaxRank) {
    refuse(name, "has " + std::to_string(view.rank) + " axes: expected 1 to 4");
  }
  Tensor t{.dtype = dtype_of(view.dtype, name),
           .device = device_of(view.device, name),
           .rank = view.rank};
  t.data = view.data == nullptr ? nullptr : static_cast<std::byte*>(view.data) + view.byte_offset;
  std::copy_n(view.sizes, view.rank, t.sizes.begin());
  arguments::require_countable(name, t);
  std::int64_t dense = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    const auto axis = static_cast<std::size_t>(i);
    t.strides[axis] = view.strides != nullptr ? view.strides[i] : dense;
    dense *= view.sizes[i];
  }
  return t;
}

Tensor from_dlpack(const ManagedViewVersioned& managed, bool will_be_written, const char* name) {
  if (managed.version.major != 1) {
    refuse(name, "has version " + std::to_string(managed.version.major) + "." +
                     std::to_string(managed.version.minor) + ": expected major version 1");
  }
  if (will_be_written && (managed.flags & kReadOnly) != 0)
    refuse(name, "is read-only and would be written");
  return from_dlpack(managed.view, name);
}

ManagedViewVersioned* to_dlpack(const Tensor& tensor, void* context, void (*release)(void*)) {
  if (!tensor.defined()) refuse("tensor", "is not given");
  auto owned = std::make_unique<Owned>();
  owned->sizes = tensor.sizes;
  owned->strides = tensor.strides;
  owned->context = context;
  owned->release = release;
  const bool cpu = tensor.device.type == DeviceType::cpu;
  View& view = owned->managed.view;
  view.data = tensor.data;
  view.device = {cpu ? DeviceCode::cpu : DeviceCode::cuda, tensor.device.index};
  view.rank = tensor.rank;
  view.dtype = type_of(tensor.dtype);
  view.sizes = owned->sizes.data();
  view.strides = owned->strides.data();
  owned->managed.context = owned.get();
  owned->managed.deleter = delete_owned;
  return &owned.release()->managed;
}

}  // namespace tilewise::dlpack
