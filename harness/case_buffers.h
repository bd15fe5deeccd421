/// Memory and strides of a case's tensors. Used by materialize.cpp only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/device_memory.h"

namespace tilewise {

using Sizes = std::array<std::int64_t, 4>;

/// The layout of a tensor's elements in a block of memory.
struct Placement {
  Sizes strides{};
  std::int64_t origin = 0;  ///< of element (0, 0, 0, 0)
  std::int64_t elems = 0;   ///< of the block
};

/// `layout` must not be qkv, whose three tensors share a block.
Placement place(Layout layout, const Sizes& sizes);
/// A layout that an output can have: expanded becomes bhsd, qkv and latent become bshd.
Layout output_layout(Layout layout);

/// One block of memory on the device, its mirror on the host, guard bands around it. Bands and gaps
/// hold 0xFF bytes, which is NaN in every float type.
class Buffer {
 public:
  static constexpr std::int64_t kGuardBytes = 256;

  /// Without `memory` there are no data, and pointers are null.
  Buffer(std::string name, std::int64_t bytes, DeviceMemory* memory, bool guards);
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  const std::string& name() const { return name_; }
  void* host() const { return host_ == nullptr ? nullptr : host_ + guard_; }
  void* device() const { return device_ == nullptr ? nullptr : device_ + guard_; }

  void poison();
  /// Host bytes to the device, and back.
  void upload();
  void download();
  /// True when the bands, and all that `view` (a tensor in this block; not given = the whole) does
  /// not cover, are 0xFF on the host.
  bool intact(const Tensor& view) const;

 private:
  std::string name_;
  std::int64_t bytes_ = 0, guard_ = 0;
  DeviceMemory* memory_ = nullptr;
  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
  std::vector<std::byte> mirror_;

  std::int64_t whole() const { return bytes_ + 2 * guard_; }
};

}  // namespace tilewise
