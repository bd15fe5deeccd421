#include "tilewise/kv_cache.h"

#include "cpu/append.h"
#include "cuda/kernels/rows/append.h"
#include "problem/append.h"

namespace tilewise {

void append(const AppendTensors& tensors, const AppendSpec& spec, const Launch& launch) {
  const Append call = make_append(tensors, spec);
  if (call.batch == 0) return;
  if (call.device.type == DeviceType::cuda) return cuda::append(call, launch.stream);
  cpu::append(call, launch.executor != nullptr ? *launch.executor : default_executor());
}

}  // namespace tilewise
