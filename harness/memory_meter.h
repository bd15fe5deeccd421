/// MemoryMeter: an Allocator that counts every byte it hands out, live and peak, under a budget.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "tilewise/runtime.h"

namespace tilewise {

/// Thread-safe. A request that would pass the budget throws OutOfMemory (asked, in use, budget) and
/// changes nothing.
class MemoryMeter final : public Allocator {
 public:
  /// `budget_bytes` 0 = no limit. `base` null = default_allocator().
  explicit MemoryMeter(std::int64_t budget_bytes = 0, Allocator* base = nullptr);

  void* allocate(std::int64_t bytes, Device device, void* stream) override;
  void release(void* data, std::int64_t bytes, Device device, void* stream) noexcept override;

  std::int64_t live_bytes() const;
  std::int64_t peak_bytes() const;
  std::int64_t allocations() const;  ///< successful ones so far
  std::int64_t budget_bytes() const;
  void set_budget(std::int64_t bytes);
  /// Peak = live.
  void reset_peak();

 private:
  mutable std::mutex mutex_;
  Allocator& base_;
  std::int64_t budget_ = 0, live_ = 0, peak_ = 0, allocations_ = 0;
};

/// "1.5 GiB", "20.0 MiB", "512 bytes": for messages.
std::string format_bytes(std::int64_t bytes);

}  // namespace tilewise
