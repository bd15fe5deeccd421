#include "harness/device_memory.h"

#include <cstring>

#include "harness/cuda_measure.h"

namespace tilewise {
namespace {

class HostMemory final : public DeviceMemory {
 public:
  explicit HostMemory(Allocator* allocator)
      : allocator_(allocator != nullptr ? *allocator : default_allocator()) {}
  Device device() const override { return {}; }
  void* allocate(std::int64_t bytes) override { return allocator_.allocate(bytes, {}, nullptr); }
  void release(void* data, std::int64_t bytes) noexcept override {
    allocator_.release(data, bytes, {}, nullptr);
  }
  void copy_in(void* to_device, const void* from_host, std::int64_t bytes) override {
    std::memcpy(to_device, from_host, static_cast<std::size_t>(bytes));
  }
  void copy_out(void* to_host, const void* from_device, std::int64_t bytes) override {
    std::memcpy(to_host, from_device, static_cast<std::size_t>(bytes));
  }
  void fill(void* data, int byte, std::int64_t bytes) override {
    std::memset(data, byte, static_cast<std::size_t>(bytes));
  }
  void synchronize() override {}
  bool is_host() const override { return true; }

 private:
  Allocator& allocator_;
};

}  // namespace

std::unique_ptr<DeviceMemory> host_memory(Allocator* allocator) {
  return std::make_unique<HostMemory>(allocator);
}

std::unique_ptr<DeviceMemory> device_memory(Device device, Allocator* allocator) {
  if (device.type == DeviceType::cpu) return host_memory(allocator);
  return cuda_memory(device.index, allocator);
}

}  // namespace tilewise
