/// Who carries out the verbs of a model on its device.
#pragma once

#include <memory>
#include <type_traits>

#include "layers/cpu_ops.h"
#include "layers/cuda_ops.h"

namespace tilewise::asam {

template <class T>
std::unique_ptr<Ops<T>> make_ops(const Config& config, const Launch& launch, Memory& memory) {
  if constexpr (std::is_same_v<T, float>) {
    if (config.device.type == DeviceType::cuda) {
      return std::make_unique<CudaOps>(config, launch, memory);
    }
  }
  Executor& executor = launch.executor != nullptr ? *launch.executor : default_executor();
  return std::make_unique<CpuOps<T>>(executor, config.compute, memory);
}

}  // namespace tilewise::asam
