/// DLPack, the tensor exchange format of Python's array libraries: its version 1 ABI, and
/// conversion to and from Tensor. The layouts follow the DLPack 1.0 specification. Pointers to
/// DLManagedTensorVersioned, DLManagedTensor or DLTensor can be cast to these types.
#pragma once

#include <cstdint>

#include "tilewise/tensor.h"

namespace tilewise::dlpack {

struct Version {
  std::uint32_t major = 1;
  std::uint32_t minor = 0;
};

enum class DeviceCode : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13 };

struct DeviceId {
  DeviceCode type = DeviceCode::cpu;
  std::int32_t index = 0;
};

enum class TypeCode : std::uint8_t {
  integer = 0,
  unsigned_integer = 1,
  floating = 2,
  bfloat = 4,
  boolean = 6
};

struct DataType {
  TypeCode code = TypeCode::floating;
  std::uint8_t bits = 32;
  std::uint16_t lanes = 1;
};

struct View {
  void* data = nullptr;
  DeviceId device = {};
  std::int32_t rank = 0;
  DataType dtype = {};
  std::int64_t* sizes = nullptr;
  std::int64_t* strides = nullptr;  ///< in elements; null = row-major
  std::uint64_t byte_offset = 0;
};

/// DLPack before version 1: without flags and version.
struct ManagedView {
  View view = {};
  void* context = nullptr;
  void (*deleter)(ManagedView* self) = nullptr;
};

inline constexpr std::uint64_t kReadOnly = 1;
inline constexpr std::uint64_t kIsCopied = 2;

struct ManagedViewVersioned {
  Version version = {};
  void* context = nullptr;
  void (*deleter)(ManagedViewVersioned* self) = nullptr;
  std::uint64_t flags = 0;
  View view = {};
};

/// A Tensor over the same memory. It owns nothing, so the view must outlive it. Throws
/// InvalidArgument with `name` for unsupported types, devices or ranks.
TILEWISE_API Tensor from_dlpack(const View& view, const char* name = "tensor");
/// Also checks the version (major 1), and that a tensor to be written is not read-only.
TILEWISE_API Tensor from_dlpack(const ManagedViewVersioned& managed, bool will_be_written,
                                const char* name = "tensor");

/// A managed view of `tensor`'s memory. Its deleter calls release(context) once and frees the view.
/// `release` may be null if the memory outlives the view. Throws InvalidArgument if `tensor` is not
/// given.
TILEWISE_API ManagedViewVersioned* to_dlpack(const Tensor& tensor, void* context = nullptr,
                                             void (*release)(void* context) = nullptr);

}  // namespace tilewise::dlpack
