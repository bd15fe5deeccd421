// libcuda.so.1 without a GPU: one H100 whose kernels do nothing. Device memory is real, at
// addresses that the host may not touch: code that reads a device tensor on the host ends by a
// signal.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace {

using Address = unsigned long long;

constexpr std::size_t kBytes = std::size_t{32} << 30;
constexpr std::size_t kAlignment = 512;
constexpr int kOutOfMemory = 2, kUnknown = 999;

int object;  // what every handle points to
thread_local void* current = nullptr;

/// The same pages twice: as the device sees them, without any rights, and as copies reach them.
struct Memory {
  char* device = nullptr;
  char* host = nullptr;
  std::size_t used = 0;

  Memory() {
    const int file = memfd_create("device", 0);
    if (ftruncate(file, kBytes) != 0) return;
    const int flags = MAP_SHARED | MAP_NORESERVE;
    device = static_cast<char*>(mmap(nullptr, kBytes, PROT_NONE, flags, file, 0));
    host = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, flags, file, 0));
  }
};

Memory& memory() {
  static Memory made;
  return made;
}

char* reach(Address at) { return memory().host + (reinterpret_cast<char*>(at) - memory().device); }

int attribute(int which) {
  switch (which) {
    case 13:  // clock, kHz
      return 1980000;
    case 16:  // multiprocessors
      return 132;
    case 36:  // memory clock, kHz
      return 2619000;
    case 37:  // memory bus, bits
      return 5120;
    case 38:  // L2, bytes
      return 50 << 20;
    case 75:  // compute capability
      return 9;
    case 76:
      return 0;
    case 81:  // shared memory of a multiprocessor, of a block
      return 233472;
    case 97:
      return 232448;
    default:
      return 1;
  }
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return memory().host == nullptr ? kUnknown : 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR_OF_THE_FAKE", 0; }
int cuGetErrorString(int, const char** text) { return *text = "no driver", 0; }
int cuGetExportTable(const void** table, const void*) { return *table = nullptr, kUnknown; }

int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int) { return *device = 0, 0; }
int cuDeviceGetName(char* name, int length, int) {
  return std::strncpy(name, "fake H100", static_cast<std::size_t>(length)), 0;
}
int cuDeviceGetAttribute(int* value, int which, int) { return *value = attribute(which), 0; }
int cuDeviceTotalMem_v2(std::size_t* bytes, int) { return *bytes = std::size_t{80} << 30, 0; }

int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &object, 0; }
int cuCtxGetCurrent(void** context) { return *context = current, 0; }
int cuCtxPushCurrent_v2(void* context) { return current = context, 0; }
int cuCtxPopCurrent_v2(void** context) { return *context = current, current = nullptr, 0; }

int cuModuleLoadData(void** module, const void*) { return *module = &object, 0; }
int cuModuleGetFunction(void** function, void*, const char*) { return *function = &object, 0; }
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuFuncGetAttribute(int* value, int, void*) { return *value = 0, 0; }
int cuLaunchKernelEx(const void*, void*, void**, void**) { return 0; }

int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return *free = *total = std::size_t{80} << 30, 0;
}
int cuMemPoolCreate(void** pool, const void*) { return *pool = &object, 0; }
int cuMemPoolSetAttribute(void*, int, void*) { return 0; }
int cuMemPoolTrimTo(void*, std::size_t) { return 0; }
/// From one end to the other, then again from the first: nothing that lives is as old as that.
int cuMemAllocFromPoolAsync(Address* data, std::size_t bytes, void*, void*) {
  Memory& all = memory();
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (bytes > kBytes) return kOutOfMemory;
  if (all.used + bytes > kBytes) all.used = 0;
  *data = reinterpret_cast<Address>(all.device + all.used);
  all.used += bytes;
  return 0;
}
int cuMemAlloc_v2(Address* data, std::size_t bytes) {
  return cuMemAllocFromPoolAsync(data, bytes, nullptr, nullptr);
}
int cuMemFree_v2(Address) { return 0; }
int cuMemFreeAsync(Address, void*) { return 0; }
int cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, void*) {
  return std::memcpy(reach(to), from, bytes), 0;
}
int cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, void*) {
  return std::memcpy(to, reach(from), bytes), 0;
}
int cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes, void*) {
  return std::memset(reach(to), value, bytes), 0;
}

int cuStreamCreate(void** stream, unsigned) { return *stream = &object, 0; }
int cuStreamDestroy_v2(void*) { return 0; }
int cuStreamSynchronize(void*) { return 0; }
int cuStreamBeginCapture_v2(void*, int) { return 0; }
int cuStreamEndCapture(void*, void** graph) { return *graph = &object, 0; }
int cuGraphInstantiateWithFlags(void** exec, void*, unsigned long long) {
  return *exec = &object, 0;
}
int cuGraphLaunch(void*, void*) { return 0; }
int cuGraphExecDestroy(void*) { return 0; }
int cuGraphDestroy(void*) { return 0; }
int cuEventCreate(void** event, unsigned) { return *event = &object, 0; }
int cuEventDestroy_v2(void*) { return 0; }
int cuEventRecord(void*, void*) { return 0; }
int cuEventSynchronize(void*) { return 0; }
int cuEventElapsedTime(float* ms, void*, void*) { return *ms = 1.0F, 0; }
int cuTensorMapEncodeTiled(void* map, int, unsigned, void*, const std::uint64_t*,
                           const std::uint64_t*, const std::uint32_t*, const std::uint32_t*, int,
                           int, int, int) {
  return std::memset(map, 1, 128), 0;
}

}  // extern "C"
