/// Device memory: stream-ordered allocation from a pool of the library's own, copies and fills.
#pragma once

#include <cstdint>

namespace tilewise::cuda {

/// `bytes` > 0 of memory of `device` for use on `stream`, 256-byte aligned. Throws OutOfMemory,
/// DeviceError.
void* allocate(std::int64_t bytes, int device, void* stream);

/// Gives it back; work queued on `stream` before may still use it.
void release(void* data, int device, void* stream) noexcept;

/// Fills with a byte value, on `stream`.
void fill_bytes(void* data, unsigned char value, std::int64_t bytes, int device, void* stream);

/// Copies; asynchronous on `stream` (from or to pageable host memory the driver may block).
void copy_to_device(void* device_data, const void* host_data, std::int64_t bytes, int device,
                    void* stream);
void copy_to_host(void* host_data, const void* device_data, std::int64_t bytes, int device,
                  void* stream);

/// Waits until everything queued on `stream` is done. Throws DeviceError when some of it failed.
void synchronize(int device, void* stream);

/// Memory of a device that is free now, and all of it.
struct MemoryInfo {
  std::int64_t free_bytes = 0, total_bytes = 0;
};
MemoryInfo memory_info(int device);

}  // namespace tilewise::cuda
