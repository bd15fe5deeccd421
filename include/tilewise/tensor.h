/// Tensor: a non-owning view of the caller's memory. Layouts (BSHD, BHSD, packed, slices,
/// broadcasts) differ only in strides. The logical order of the axes is always (batch, heads,
/// sequence, dim).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "tilewise/error.h"

namespace tilewise {

/// Element types. q, k and v may be float64 (reference only), float32, bfloat16 or float16.
enum class DType : std::uint8_t {
  float64,
  float32,
  bfloat16,
  float16,
  boolean,
  uint8,
  int32,
  int64
};

/// Bytes of one element.
TILEWISE_API std::int64_t dtype_bytes(DType dtype);
/// Name of a type: "float64", "float32", "bfloat16", "float16", "bool", "uint8",
/// "int32", "int64".
TILEWISE_API std::string_view dtype_name(DType dtype);
/// True for float64, float32, bfloat16 and float16.
TILEWISE_API bool is_floating(DType dtype);

enum class DeviceType : std::uint8_t { cpu, cuda };

/// Where memory lives. `index` counts devices of the type and is 0 for the CPU.
struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

/// "cpu" or "cuda:N".
TILEWISE_API std::string device_name(Device device);

/// A view of up to four axes. Strides count elements, not bytes; any stride is legal, 0 and
/// negative too. A default-constructed Tensor is "not given". A Tensor with sizes and a null
/// pointer is enough for plan().
struct Tensor {
  static constexpr int kMaxRank = 4;
  /// Maximum number of elements of a tensor, and of elements that its strides span. Sums of byte
  /// counts then stay below 2^63.
  static constexpr std::int64_t kMaxElems = std::int64_t{1} << 56;

  void* data = nullptr;
  DType dtype = DType::float32;
  Device device = {};
  int rank = 0;
  std::array<std::int64_t, kMaxRank> sizes{};
  std::array<std::int64_t, kMaxRank> strides{};

  /// True if the tensor is given. Its data may be null for planning, or if it has no elements.
  bool defined() const { return rank > 0; }
  /// Number of elements; 0 if not given.
  TILEWISE_API std::int64_t numel() const;
  /// Text for messages: "float32 (2, 8, 128, 64) on cpu".
  TILEWISE_API std::string describe() const;

  /// Row-major tensor of the given sizes. Throws InvalidArgument for more than four axes, a
  /// negative size or more than kMaxElems elements.
  TILEWISE_API static Tensor contiguous(void* data, DType dtype,
                                        std::initializer_list<std::int64_t> sizes,
                                        Device device = {});
  /// Memory and logical axes in the order (B, H, S, D). Throws the same errors as contiguous().
  TILEWISE_API static Tensor bhsd(void* data, DType dtype, std::int64_t batch, std::int64_t heads,
                                  std::int64_t seq, std::int64_t dim, Device device = {});
  /// Memory in the order (B, S, H, D), logical axes (B, H, S, D). It also describes a paged pool
  /// (pages, page_size, heads, dim). Throws the same errors as contiguous().
  TILEWISE_API static Tensor bshd(void* data, DType dtype, std::int64_t batch, std::int64_t seq,
                                  std::int64_t heads, std::int64_t dim, Device device = {});
  /// Packed sequences: memory (total, H, D), logical axes (1, H, total, D). Throws as contiguous().
  TILEWISE_API static Tensor packed(void* data, DType dtype, std::int64_t total, std::int64_t heads,
                                    std::int64_t dim, Device device = {});
};

}  // namespace tilewise
