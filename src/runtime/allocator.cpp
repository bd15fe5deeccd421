/// The default allocator: host memory, and the driver's stream-ordered memory for CUDA devices.
/// (runtime.h)
#include <sys/mman.h>

#include <cstdlib>
#include <string>

#include "cuda/driver/memory.h"
#include "tilewise/error.h"
#include "tilewise/runtime.h"

namespace tilewise {
namespace {

constexpr std::int64_t kAlignment = 256;
/// From this size on, memory comes in huge pages where the kernel has them: the first touch of an S
/// x S matrix is otherwise a page fault every 4 KiB.
constexpr std::int64_t kHugePageBytes = std::int64_t{2} << 20;

/// More than an x86-64 process can address: refused without asking.
constexpr std::int64_t kAddressableBytes = std::int64_t{1} << 47;

class DefaultAllocator final : public Allocator {
 public:
  void* allocate(std::int64_t bytes, Device device, void* stream) override {
    if (device.type == DeviceType::cuda) return cuda::allocate(bytes, device.index, stream);
    const std::int64_t alignment = bytes >= 4 * kHugePageBytes ? kHugePageBytes : kAlignment;
    // aligned_alloc wants a multiple of the alignment.
    const auto rounded =
        (static_cast<std::size_t>(bytes) + static_cast<std::size_t>(alignment) - 1) /
        static_cast<std::size_t>(alignment) * static_cast<std::size_t>(alignment);
    void* data = bytes > kAddressableBytes
                     ? nullptr
                     : std::aligned_alloc(static_cast<std::size_t>(alignment), rounded);
    if (data == nullptr) {
      throw OutOfMemory("default_allocator: " + std::to_string(bytes) +
                        " bytes on the CPU could not be allocated");
    }
    if (alignment == kHugePageBytes) madvise(data, rounded, MADV_HUGEPAGE);  // a wish; may fail
    return data;
  }

  void release(void* data, std::int64_t /*bytes*/, Device device, void* stream) noexcept override {
    if (device.type == DeviceType::cuda) return cuda::release(data, device.index, stream);
    std::free(data);
  }
};

}  // namespace

Allocator::~Allocator() = default;

Allocator& default_allocator() {
  // Never destroyed: callers' static objects may release memory after ours are gone.
  static DefaultAllocator& allocator = *new DefaultAllocator;
  return allocator;
}

}  // namespace tilewise
