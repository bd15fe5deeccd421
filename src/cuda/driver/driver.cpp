#include "cuda/driver/driver.h"

#include <array>

#include "cuda/driver/library.h"
#include "tilewise/error.h"

namespace tilewise::cuda {
namespace {

struct OpenedDriver {
  Driver functions{};
  bool usable = false;
  std::string reason;
};

/// The _v2 names are the ones that the driver's header maps the plain names to.
bool resolve_all(SharedLibrary& library, Driver& d) {
  return library.resolve("cuInit", d.cuInit) &&
         library.resolve("cuDriverGetVersion", d.cuDriverGetVersion) &&
         library.resolve("cuGetErrorName", d.cuGetErrorName) &&
         library.resolve("cuGetErrorString", d.cuGetErrorString) &&
         library.resolve("cuDeviceGetCount", d.cuDeviceGetCount) &&
         library.resolve("cuDeviceGet", d.cuDeviceGet) &&
         library.resolve("cuDeviceGetName", d.cuDeviceGetName) &&
         library.resolve("cuDeviceGetAttribute", d.cuDeviceGetAttribute) &&
         library.resolve("cuDeviceTotalMem_v2", d.cuDeviceTotalMem) &&
         library.resolve("cuDevicePrimaryCtxRetain", d.cuDevicePrimaryCtxRetain) &&
         library.resolve("cuCtxGetCurrent", d.cuCtxGetCurrent) &&
         library.resolve("cuCtxPushCurrent_v2", d.cuCtxPushCurrent) &&
         library.resolve("cuCtxPopCurrent_v2", d.cuCtxPopCurrent) &&
         library.resolve("cuModuleLoadData", d.cuModuleLoadData) &&
         library.resolve("cuModuleGetFunction", d.cuModuleGetFunction) &&
         library.resolve("cuFuncSetAttribute", d.cuFuncSetAttribute) &&
         library.resolve("cuFuncGetAttribute", d.cuFuncGetAttribute) &&
         library.resolve("cuLaunchKernelEx", d.cuLaunchKernelEx) &&
         library.resolve("cuMemGetInfo_v2", d.cuMemGetInfo) &&
         library.resolve("cuMemAlloc_v2", d.cuMemAlloc) &&
         library.resolve("cuMemFree_v2", d.cuMemFree) &&
         library.resolve("cuMemPoolCreate", d.cuMemPoolCreate) &&
         library.resolve("cuMemPoolSetAttribute", d.cuMemPoolSetAttribute) &&
         library.resolve("cuMemPoolTrimTo", d.cuMemPoolTrimTo) &&
         library.resolve("cuMemAllocFromPoolAsync", d.cuMemAllocFromPoolAsync) &&
         library.resolve("cuMemFreeAsync", d.cuMemFreeAsync) &&
         library.resolve("cuMemcpyHtoDAsync_v2", d.cuMemcpyHtoDAsync) &&
         library.resolve("cuMemcpyDtoHAsync_v2", d.cuMemcpyDtoHAsync) &&
         library.resolve("cuMemsetD8Async", d.cuMemsetD8Async) &&
         library.resolve("cuStreamCreate", d.cuStreamCreate) &&
         library.resolve("cuStreamDestroy_v2", d.cuStreamDestroy) &&
         library.resolve("cuStreamSynchronize", d.cuStreamSynchronize) &&
         library.resolve("cuStreamBeginCapture_v2", d.cuStreamBeginCapture) &&
         library.resolve("cuStreamEndCapture", d.cuStreamEndCapture) &&
         library.resolve("cuGraphInstantiateWithFlags", d.cuGraphInstantiateWithFlags) &&
         library.resolve("cuGraphLaunch", d.cuGraphLaunch) &&
         library.resolve("cuGraphExecDestroy", d.cuGraphExecDestroy) &&
         library.resolve("cuGraphDestroy", d.cuGraphDestroy) &&
         library.resolve("cuEventCreate", d.cuEventCreate) &&
         library.resolve("cuEventDestroy_v2", d.cuEventDestroy) &&
         library.resolve("cuEventRecord", d.cuEventRecord) &&
         library.resolve("cuEventSynchronize", d.cuEventSynchronize) &&
         library.resolve("cuEventElapsedTime", d.cuEventElapsedTime) &&
         library.resolve("cuTensorMapEncodeTiled", d.cuTensorMapEncodeTiled);
}

std::string error_text(const Driver& d, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  d.cuGetErrorName(result, &name);
  d.cuGetErrorString(result, &text);
  std::string message = name != nullptr ? name : "CUDA error " + std::to_string(result);
  if (text != nullptr) message += std::string(" (") + text + ")";
  return message;
}

OpenedDriver open_driver() {
  OpenedDriver opened;
  SharedLibrary library;
  const std::array<std::string, 1> sonames = {"libcuda.so.1"};
  if (!library.open(sonames)) {
    opened.reason = "no NVIDIA driver was found: " + library.error();
    return opened;
  }
  if (!resolve_all(library, opened.functions)) {
    opened.reason =
        "the NVIDIA driver is too old (expected CUDA 12.0 or newer): " + library.error();
    return opened;
  }
  const CUresult result = opened.functions.cuInit(0);
  if (result != kCudaSuccess) {
    opened.reason = "cuInit of " + library.path() + ": " + error_text(opened.functions, result);
    return opened;
  }
  opened.usable = true;
  return opened;
}

const OpenedDriver& opened_driver() {
  static const OpenedDriver opened = open_driver();
  return opened;
}

}  // namespace

const Driver* find_driver(std::string* why_not) {
  const OpenedDriver& opened = opened_driver();
  if (opened.usable) return &opened.functions;
  if (why_not != nullptr) *why_not = opened.reason;
  return nullptr;
}

const Driver& driver() {
  std::string why_not;
  const Driver* found = find_driver(&why_not);
  if (found == nullptr) throw DeviceError(why_not);
  return *found;
}

std::string describe_error(CUresult result) { return error_text(driver(), result); }

void check(CUresult result, const char* call, int device) {
  if (result == kCudaSuccess) return;
  std::string message = call;
  if (device >= 0) message += " on cuda:" + std::to_string(device);
  message += ": " + describe_error(result);
  if (result == kCudaOutOfMemory) throw OutOfMemory(message);
  throw DeviceError(message);
}

}  // namespace tilewise::cuda
