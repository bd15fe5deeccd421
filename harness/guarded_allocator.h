/// GuardedAllocator: workspace filled with NaN between guard bands, to show that kernels neither
/// read what they did not write nor write what is not theirs.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "harness/device_memory.h"

namespace tilewise {

/// Thread-safe. Counts what was handed out and what came back damaged.
class GuardedAllocator final : public Allocator {
 public:
  explicit GuardedAllocator(DeviceMemory& memory);
  ~GuardedAllocator() override;

  void* allocate(std::int64_t bytes, Device device, void* stream) override;
  void release(void* data, std::int64_t bytes, Device device, void* stream) noexcept override;

  /// Blocks whose bands were overwritten, among those released so far.
  int damaged() const;
  /// Blocks that are still out.
  int outstanding() const;
  std::int64_t peak_bytes() const;

 private:
  mutable std::mutex mutex_;
  DeviceMemory& memory_;
  std::map<void*, std::int64_t> blocks_;
  std::int64_t live_ = 0, peak_ = 0;
  int damaged_ = 0;
};

}  // namespace tilewise
