/// The tensors of a run where its device can reach them.
#pragma once

#include <map>

#include "cli/run/run_tensors.h"

namespace tilewise::cli {

/// Copies of a run's tensors in a device's memory; on the host, the very same tensors.
class DeviceTensors {
 public:
  DeviceTensors(const RunTensors& host, DeviceMemory& memory);
  DeviceTensors(const DeviceTensors&) = delete;
  DeviceTensors& operator=(const DeviceTensors&) = delete;
  ~DeviceTensors();

  ForwardTensors& forward() { return forward_; }
  BackwardTensors& backward() { return backward_; }
  const AttentionSpec& spec() const { return spec_; }

  /// Brings the results back.
  void download();

 private:
  struct Copy {
    void* device = nullptr;
    std::int64_t bytes = 0;
    bool result = false;
  };
  void move(Tensor& tensor, bool result);

  DeviceMemory& memory_;
  ForwardTensors forward_;
  BackwardTensors backward_;
  AttentionSpec spec_;
  std::map<void*, Copy> copies_;  ///< by host address: forward and backward share tensors
};

}  // namespace tilewise::cli
