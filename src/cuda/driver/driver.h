/// The CUDA driver's functions, opened at run time.
#pragma once

#include <string>

#include "cuda/driver/cuda_types.h"

namespace tilewise::cuda {

/// One pointer a function, named as in the driver's manual.
struct Driver {
  CUresult (*cuInit)(unsigned flags);
  CUresult (*cuDriverGetVersion)(int* version);
  CUresult (*cuGetErrorName)(CUresult error, const char** name);
  CUresult (*cuGetErrorString)(CUresult error, const char** text);

  CUresult (*cuDeviceGetCount)(int* count);
  CUresult (*cuDeviceGet)(CUdevice* device, int ordinal);
  CUresult (*cuDeviceGetName)(char* name, int length, CUdevice device);
  CUresult (*cuDeviceGetAttribute)(int* value, DeviceAttribute attribute, CUdevice device);
  CUresult (*cuDeviceTotalMem)(std::size_t* bytes, CUdevice device);

  CUresult (*cuDevicePrimaryCtxRetain)(CUcontext* context, CUdevice device);
  CUresult (*cuCtxGetCurrent)(CUcontext* context);
  CUresult (*cuCtxPushCurrent)(CUcontext context);
  CUresult (*cuCtxPopCurrent)(CUcontext* context);

  CUresult (*cuModuleLoadData)(CUmodule* module, const void* image);
  CUresult (*cuModuleGetFunction)(CUfunction* function, CUmodule module, const char* name);
  CUresult (*cuFuncSetAttribute)(CUfunction function, FunctionAttribute attribute, int value);
  CUresult (*cuFuncGetAttribute)(int* value, FunctionAttribute attribute, CUfunction function);
  CUresult (*cuLaunchKernelEx)(const LaunchConfig* config, CUfunction function, void** parameters,
                               void** extra);

  CUresult (*cuMemGetInfo)(std::size_t* free_bytes, std::size_t* total_bytes);
  CUresult (*cuMemAlloc)(CUdeviceptr* data, std::size_t bytes);
  CUresult (*cuMemFree)(CUdeviceptr data);
  CUresult (*cuMemPoolCreate)(CUmemoryPool* pool, const MemoryPoolProperties* properties);
  CUresult (*cuMemPoolSetAttribute)(CUmemoryPool pool, int attribute, void* value);
  CUresult (*cuMemPoolTrimTo)(CUmemoryPool pool, std::size_t keep_bytes);
  CUresult (*cuMemAllocFromPoolAsync)(CUdeviceptr* data, std::size_t bytes, CUmemoryPool pool,
                                      CUstream stream);
  CUresult (*cuMemFreeAsync)(CUdeviceptr data, CUstream stream);
  CUresult (*cuMemcpyHtoDAsync)(CUdeviceptr to, const void* from, std::size_t bytes,
                                CUstream stream);
  CUresult (*cuMemcpyDtoHAsync)(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream);
  CUresult (*cuMemsetD8Async)(CUdeviceptr to, unsigned char value, std::size_t bytes,
                              CUstream stream);

  CUresult (*cuStreamCreate)(CUstream* stream, unsigned flags);
  CUresult (*cuStreamDestroy)(CUstream stream);
  CUresult (*cuStreamSynchronize)(CUstream stream);
  CUresult (*cuStreamBeginCapture)(CUstream stream, int mode);
  CUresult (*cuStreamEndCapture)(CUstream stream, CUgraph* graph);
  CUresult (*cuGraphInstantiateWithFlags)(CUgraphExec* exec, CUgraph graph,
                                          unsigned long long flags);
  CUresult (*cuGraphLaunch)(CUgraphExec exec, CUstream stream);
  CUresult (*cuGraphExecDestroy)(CUgraphExec exec);
  CUresult (*cuGraphDestroy)(CUgraph graph);

  CUresult (*cuEventCreate)(CUevent* event, unsigned flags);
  CUresult (*cuEventDestroy)(CUevent event);
  CUresult (*cuEventRecord)(CUevent event, CUstream stream);
  CUresult (*cuEventSynchronize)(CUevent event);
  CUresult (*cuEventElapsedTime)(float* ms, CUevent start, CUevent end);

  CUresult (*cuTensorMapEncodeTiled)(TensorMap* map, int data_type, unsigned rank, void* data,
                                     const std::uint64_t* sizes, const std::uint64_t* strides,
                                     const std::uint32_t* box, const std::uint32_t* element_strides,
                                     int interleave, int swizzle, int l2_promotion, int fill);
};

/// The driver after cuInit. Throws DeviceError, saying what is missing, when there is none.
const Driver& driver();

/// The driver, or null with a reason.
const Driver* find_driver(std::string* why_not);

/// Throws OutOfMemory or DeviceError for anything but success: "cuLaunchKernelEx on cuda:0:
/// CUDA_ERROR_... (...)". `device` < 0 leaves the device out.
void check(CUresult result, const char* call, int device = -1);

/// The driver's name and text for an error.
std::string describe_error(CUresult result);

}  // namespace tilewise::cuda
