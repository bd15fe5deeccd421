// libcuda.so.1 without a GPU: one H100. Its kernels do nothing, unless they are objects of the
// emulator's (launch.h). Its device memory is real, at addresses that the host may not touch
// (memory.h).
#include "launch.h"
#include "memory.h"

namespace {

using fake::Address;
using fake::memory;

constexpr int kInvalid = 1, kOutOfMemory = 2, kNoImage = 200, kUnknown = 999;

int object;  // what every handle points to
thread_local void* current = nullptr;

/// TILEWISE_CARD_MULTIPROCESSORS: few of them give a block of a persistent kernel many tiles.
int multiprocessors() {
  const char* text = std::getenv("TILEWISE_CARD_MULTIPROCESSORS");
  return text == nullptr ? 132 : std::atoi(text);
}

int attribute(int which) {
  switch (which) {
    case 13:  // clock, kHz
      return 1980000;
    case 16:
      return multiprocessors();
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

/// For the products of tests/cuda/card.
void card_open_memory() { memory().open(); }
void card_close_memory() { memory().close("cuBLAS"); }

int cuInit(unsigned) { return memory().is_there() ? 0 : kUnknown; }
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

int cuModuleLoadData(void** module, const void* image) {
  *module = &object;
  if (std::memcmp(image, ELFMAG, SELFMAG) != 0) return 0;
  *module = fake::load(image);
  return *module == nullptr ? kNoImage : 0;
}
int cuModuleGetFunction(void** function, void* module, const char*) {
  return *function = module, 0;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuFuncGetAttribute(int* value, int, void*) { return *value = 0, 0; }
int cuLaunchKernelEx(const void* config, void* function, void** parameters, void**) {
  if (function == &object) return 0;
  const auto* words = static_cast<const unsigned*>(config);
  return fake::launch(function, words, parameters[0]) ? 0 : kInvalid;
}

int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return *free = *total = std::size_t{80} << 30, 0;
}
int cuMemPoolCreate(void** pool, const void*) { return *pool = &object, 0; }
int cuMemPoolSetAttribute(void*, int, void*) { return 0; }
int cuMemPoolTrimTo(void*, std::size_t) { return 0; }
int cuMemAllocFromPoolAsync(Address* data, std::size_t bytes, void*, void*) {
  *data = memory().allocate(bytes);
  return *data == 0 ? kOutOfMemory : 0;
}
int cuMemAlloc_v2(Address* data, std::size_t bytes) {
  return cuMemAllocFromPoolAsync(data, bytes, nullptr, nullptr);
}
int cuMemFree_v2(Address data) { return memory().release(data), 0; }
int cuMemFreeAsync(Address data, void*) { return memory().release(data), 0; }
int cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, void*) {
  return std::memcpy(memory().reach(to), from, bytes), 0;
}
int cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, void*) {
  return std::memcpy(to, memory().reach(from), bytes), 0;
}
int cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes, void*) {
  return std::memset(memory().reach(to), value, bytes), 0;
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

/// As emulator::Box.
struct Box {
  void* data;
  long sizes[5], strides[5];
  int box[5], rank;
};
/// What the driver refuses of a map, is refused.
int cuTensorMapEncodeTiled(void* map, int, unsigned rank, void* data, const std::uint64_t* sizes,
                           const std::uint64_t* strides, const std::uint32_t* box,
                           const std::uint32_t*, int, int, int, int) {
  Box made{};
  made.data = data;
  made.rank = static_cast<int>(rank);
  bool is_valid = reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  for (unsigned axis = 0; axis < rank; ++axis) {
    made.sizes[axis] = static_cast<long>(sizes[axis]);
    made.box[axis] = static_cast<int>(box[axis]);
    if (axis > 0) made.strides[axis] = static_cast<long>(strides[axis - 1]);
    is_valid &= sizes[axis] - 1 < std::uint64_t{1} << 32 && box[axis] - 1 < 256;
    is_valid &= made.strides[axis] % 16 == 0 && made.strides[axis] < std::int64_t{1} << 40;
  }
  std::memset(map, 0, 128);
  std::memcpy(map, &made, sizeof(made));
  return is_valid ? 0 : kInvalid;
}

}  // extern "C"
