/// What a GPU does at most, measured in a few seconds: the ceilings that `info --measure` shows
/// beside the vendor's figures.
#pragma once

#include "tilewise/plan.h"

namespace tilewise::cli {

struct GpuCeilings {
  double read_gbps = 0.0;    ///< device memory
  double copy_gbps = 0.0;    ///< device memory, both directions counted
  double shared_gbps = 0.0;  ///< shared memory of all multiprocessors, reading
  double float32_tflops = 0.0;
  double mma_bf16_tflops = 0.0, mma_tf32_tflops = 0.0;
  double wgmma_bf16_tflops = 0.0;  ///< 0 where the architecture has no wgmma
  double launch_us = 0.0;          ///< of a small kernel after another
};

/// Measures the device of `machine`, each ceiling under sustained load. Throws DeviceError,
/// CompileError, OutOfMemory.
GpuCeilings measure_gpu(const Hardware& machine);

}  // namespace tilewise::cli
