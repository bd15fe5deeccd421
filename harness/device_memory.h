/// DeviceMemory: where a case's tensors live. The CPU's is here; a CUDA device's comes from
/// src/cuda.
#pragma once

#include <cstdint>
#include <memory>

#include "tilewise/runtime.h"

namespace tilewise {

class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  virtual ~DeviceMemory() = default;

  virtual Device device() const = 0;
  /// Aligned to 256 bytes. Throws OutOfMemory.
  virtual void* allocate(std::int64_t bytes) = 0;
  virtual void release(void* data, std::int64_t bytes) noexcept = 0;
  /// Copies and fills are finished when they return.
  virtual void copy_in(void* to_device, const void* from_host, std::int64_t bytes) = 0;
  virtual void copy_out(void* to_host, const void* from_device, std::int64_t bytes) = 0;
  virtual void fill(void* data, int byte, std::int64_t bytes) = 0;
  /// Waits for all work queued on the device.
  virtual void synchronize() = 0;
  /// True when pointers can be dereferenced by the host, so that no mirror is needed.
  virtual bool is_host() const = 0;
};

/// Host memory out of an allocator (a MemoryMeter, say); default_allocator() when null.
std::unique_ptr<DeviceMemory> host_memory(Allocator* allocator = nullptr);

/// Memory of any device. Throws DeviceError when there is no such device.
std::unique_ptr<DeviceMemory> device_memory(Device device, Allocator* allocator = nullptr);

}  // namespace tilewise
