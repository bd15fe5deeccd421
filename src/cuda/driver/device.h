/// CUDA devices: how many, what they can do, and the context that this library's work runs in.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/driver/cuda_types.h"
#include "tilewise/plan.h"

namespace tilewise::cuda {

/// Number of usable devices; 0 when there is no driver.
int device_count();

/// Why device_count() is 0: "libcuda.so.1: cannot open ...", "CUDA_ERROR_NO_DEVICE ..."; empty when
/// there is a device.
std::string missing_driver_reason();

/// Version of the installed driver's API, "13.0"; empty when there is none.
std::string driver_version();

/// What the plan needs to know. Throws DeviceError, saying what is missing, when there is no such
/// device.
const Hardware& hardware(int device);

/// Compute capability as 10 * major + minor: 80, 86, 89, 90, 100, 120. Throws as hardware().
int device_arch(int device);

/// Makes a device's primary context (the one that the CUDA runtime API and frameworks use) current
/// for its lifetime and then restores what the calling thread had. Throws as hardware().
class ContextScope {
 public:
  explicit ContextScope(int device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  bool pushed_ = false;
};

}  // namespace tilewise::cuda
