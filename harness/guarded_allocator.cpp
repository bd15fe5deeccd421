#include "harness/guarded_allocator.h"

#include <algorithm>
#include <vector>

namespace tilewise {
namespace {

constexpr std::int64_t kBandBytes = 256;
constexpr int kNan = 0xFF;  // NaN in every float type, byte by byte

}  // namespace

GuardedAllocator::GuardedAllocator(DeviceMemory& memory) : memory_(memory) {}

GuardedAllocator::~GuardedAllocator() {
  for (const auto& [data, bytes] : blocks_) {
    memory_.release(static_cast<std::byte*>(data) - kBandBytes, bytes + 2 * kBandBytes);
  }
}

void* GuardedAllocator::allocate(std::int64_t bytes, Device, void*) {
  const std::int64_t whole = bytes + 2 * kBandBytes;
  void* block = memory_.allocate(whole);
  memory_.fill(block, kNan, whole);
  void* data = static_cast<std::byte*>(block) + kBandBytes;
  const std::scoped_lock lock(mutex_);
  blocks_[data] = bytes;
  live_ += bytes;
  peak_ = std::max(peak_, live_);
  return data;
}

void GuardedAllocator::release(void* data, std::int64_t bytes, Device, void*) noexcept {
  auto* begin = static_cast<std::byte*>(data) - kBandBytes;
  bool damaged = true;
  bool known = false;
  {
    // First of all: whatever the device says below, the block is given back once.
    const std::scoped_lock lock(mutex_);
    const auto block = blocks_.find(data);
    known = block != blocks_.end() && block->second == bytes;
    if (block != blocks_.end()) blocks_.erase(block);
    live_ -= bytes;
  }
  try {
    std::vector<std::byte> bands(2 * kBandBytes);
    memory_.synchronize();
    memory_.copy_out(bands.data(), begin, kBandBytes);
    memory_.copy_out(bands.data() + kBandBytes, begin + kBandBytes + bytes, kBandBytes);
    damaged = !std::all_of(bands.begin(), bands.end(),
                           [](std::byte byte) { return byte == std::byte{kNan}; });
  } catch (const Error&) {  // a device that cannot be read any more: counted as damage
  }
  if (damaged || !known) {
    const std::scoped_lock lock(mutex_);
    ++damaged_;
  }
  memory_.release(begin, bytes + 2 * kBandBytes);
}

int GuardedAllocator::damaged() const {
  const std::scoped_lock lock(mutex_);
  return damaged_;
}

int GuardedAllocator::outstanding() const {
  const std::scoped_lock lock(mutex_);
  return static_cast<int>(blocks_.size());
}

std::int64_t GuardedAllocator::peak_bytes() const {
  const std::scoped_lock lock(mutex_);
  return peak_;
}

}  // namespace tilewise
