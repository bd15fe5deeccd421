#include "cuda/driver/memory.h"

#include <mutex>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/driver/driver.h"
#include "tilewise/error.h"

namespace tilewise::cuda {
namespace {

/// Freed memory that the pool keeps for the next call instead of giving it back to the device.
constexpr std::uint64_t kPoolKeepsBytes = 256ULL << 20;
constexpr int kPoolReleaseThreshold = 4;  // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD

/// A pool of our own: the device's default pool belongs to the host program, with the settings it
/// made.
struct Pool {
  std::once_flag created;
  CUmemoryPool pool = nullptr;
};

Pool& pool_of(int device) {
  static std::vector<Pool> pools(static_cast<std::size_t>(device_count()));
  Pool& entry = pools.at(static_cast<std::size_t>(device));
  std::call_once(entry.created, [&] {
    const Driver& d = driver();
    MemoryPoolProperties properties;
    properties.location_id = device;
    check(d.cuMemPoolCreate(&entry.pool, &properties), "cuMemPoolCreate", device);
    std::uint64_t keep = kPoolKeepsBytes;
    check(d.cuMemPoolSetAttribute(entry.pool, kPoolReleaseThreshold, &keep),
          "cuMemPoolSetAttribute", device);
  });
  return entry;
}

CUdeviceptr address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

}  // namespace

void* allocate(std::int64_t bytes, int device, void* stream) {
  const ContextScope scope(device);
  const Driver& d = driver();
  const CUmemoryPool pool = pool_of(device).pool;
  void* data = nullptr;
  auto* address_of_data = reinterpret_cast<CUdeviceptr*>(&data);
  const auto size = static_cast<std::size_t>(bytes);
  CUresult result =
      d.cuMemAllocFromPoolAsync(address_of_data, size, pool, static_cast<CUstream>(stream));
  if (result == kCudaOutOfMemory) {
    // What the pool keeps may be what is missing.
    d.cuMemPoolTrimTo(pool, 0);
    result = d.cuMemAllocFromPoolAsync(address_of_data, size, pool, static_cast<CUstream>(stream));
  }
  if (result == kCudaOutOfMemory) {
    const MemoryInfo info = memory_info(device);
    throw OutOfMemory("cuda:" + std::to_string(device) + " has no " + std::to_string(bytes) +
                      " bytes (" + std::to_string(info.free_bytes) + " of " +
                      std::to_string(info.total_bytes) + " are free): " + describe_error(result));
  }
  check(result, "cuMemAllocFromPoolAsync", device);
  return data;
}

void release(void* data, int device, void* stream) noexcept {
  if (data == nullptr) return;
  try {
    const ContextScope scope(device);
    driver().cuMemFreeAsync(address(data), static_cast<CUstream>(stream));
  } catch (const Error&) {
    // A context that has already failed: its memory is gone with it.
  }
}

void fill_bytes(void* data, unsigned char value, std::int64_t bytes, int device, void* stream) {
  if (bytes <= 0) return;
  const ContextScope scope(device);
  check(driver().cuMemsetD8Async(address(data), value, static_cast<std::size_t>(bytes),
                                 static_cast<CUstream>(stream)),
        "cuMemsetD8Async", device);
}

void copy_to_device(void* device_data, const void* host_data, std::int64_t bytes, int device,
                    void* stream) {
  if (bytes <= 0) return;
  const ContextScope scope(device);
  check(driver().cuMemcpyHtoDAsync(address(device_data), host_data, static_cast<std::size_t>(bytes),
                                   static_cast<CUstream>(stream)),
        "cuMemcpyHtoDAsync", device);
}

void copy_to_host(void* host_data, const void* device_data, std::int64_t bytes, int device,
                  void* stream) {
  if (bytes <= 0) return;
  const ContextScope scope(device);
  check(driver().cuMemcpyDtoHAsync(host_data, address(device_data), static_cast<std::size_t>(bytes),
                                   static_cast<CUstream>(stream)),
        "cuMemcpyDtoHAsync", device);
}

void synchronize(int device, void* stream) {
  const ContextScope scope(device);
  check(driver().cuStreamSynchronize(static_cast<CUstream>(stream)), "cuStreamSynchronize", device);
}

MemoryInfo memory_info(int device) {
  const ContextScope scope(device);
  std::size_t free_bytes = 0, total_bytes = 0;
  check(driver().cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo", device);
  return {static_cast<std::int64_t>(free_bytes), static_cast<std::int64_t>(total_bytes)};
}

}  // namespace tilewise::cuda
