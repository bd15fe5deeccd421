#include "harness/memory_meter.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace tilewise {

MemoryMeter::MemoryMeter(std::int64_t budget_bytes, Allocator* base)
    : base_(base != nullptr ? *base : default_allocator()), budget_(budget_bytes) {}

void* MemoryMeter::allocate(std::int64_t bytes, Device device, void* stream) {
  {
    const std::scoped_lock lock(mutex_);
    if (budget_ > 0 && bytes > budget_ - live_) {
      throw OutOfMemory("out of memory on " + device_name(device) + ": asked for " +
                        format_bytes(bytes) + " with " + format_bytes(live_) +
                        " in use and a budget of " + format_bytes(budget_));
    }
    live_ += bytes;  // before allocating, so that two threads cannot pass the budget together
  }
  void* data = nullptr;
  try {
    data = base_.allocate(bytes, device, stream);
  } catch (...) {
    const std::scoped_lock lock(mutex_);
    live_ -= bytes;
    throw;
  }
  const std::scoped_lock lock(mutex_);
  ++allocations_;
  peak_ = std::max(peak_, live_);
  return data;
}

void MemoryMeter::release(void* data, std::int64_t bytes, Device device, void* stream) noexcept {
  base_.release(data, bytes, device, stream);
  const std::scoped_lock lock(mutex_);
  live_ -= bytes;
}

std::int64_t MemoryMeter::live_bytes() const {
  const std::scoped_lock lock(mutex_);
  return live_;
}

std::int64_t MemoryMeter::peak_bytes() const {
  const std::scoped_lock lock(mutex_);
  return peak_;
}

std::int64_t MemoryMeter::allocations() const {
  const std::scoped_lock lock(mutex_);
  return allocations_;
}

std::int64_t MemoryMeter::budget_bytes() const {
  const std::scoped_lock lock(mutex_);
  return budget_;
}

void MemoryMeter::set_budget(std::int64_t bytes) {
  const std::scoped_lock lock(mutex_);
  budget_ = bytes;
}

void MemoryMeter::reset_peak() {
  const std::scoped_lock lock(mutex_);
  peak_ = live_;
}

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits{"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  for (; value >= 1024.0 && unit + 1 < kUnits.size(); ++unit) value /= 1024.0;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

}  // namespace tilewise
