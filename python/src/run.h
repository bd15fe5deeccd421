/// Runs a pass with workspace and stream from where q lives.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

#include "api/execute.h"
#include "arrays.h"
#include "spec.h"

namespace tilewise::python {

/// Runs something with workspace and stream from where q lives.
template <class Run>
void with_launch(const Tensor& q, nb::handle object, Run run) {
  const ExchangeApi* api = exchange_api(object);
  std::optional<ExchangeAllocator> allocator;
  Launch launch;
  if (api != nullptr && q.device.type == DeviceType::cuda) {
    launch.stream = current_stream(*api, q.device);
    launch.allocator = &allocator.emplace(*api);
  }
  const nb::gil_scoped_release unlocked;
  run(launch);
}

/// True where the call is over before another thread could take the interpreter lock, whose way out
/// and back costs half a microsecond.
inline bool is_brief(const Tensor& q, const Tensor& k) {
  constexpr std::int64_t kMostElements = 1024;
  return q.device.type == DeviceType::cpu && q.numel() <= kMostElements &&
         k.numel() <= kMostElements;
}

template <class Tensors>
void run_pass(const Call& call, const Tensors& tensors, nb::handle q) {
  if (is_brief(tensors.q, tensors.k)) {
    tilewise::execute(tensors, call.spec, {}, call.choice);
    return;
  }
  with_launch(tensors.q, q, [&](const Launch& launch) {
    tilewise::execute(tensors, call.spec, launch, call.choice);
  });
}

}  // namespace tilewise::python
