/// Measuring on a CUDA device: its memory, a clock of events, a flush of its L2 cache.
#pragma once

#include <memory>

#include "harness/device_memory.h"
#include "harness/timer.h"

namespace tilewise {

/// Memory of device cuda:`index` out of an allocator; default_allocator() when null. Throws
/// DeviceError.
std::unique_ptr<DeviceMemory> cuda_memory(int index, Allocator* allocator = nullptr);

/// Times work of the default stream by events on it. Throws DeviceError.
std::unique_ptr<Clock> cuda_clock(int index);

/// Writes a buffer of twice the L2 cache, on the default stream, for a tenth of a millisecond. The
/// buffer is not metered: it is no part of what is measured.
class CudaCacheFlusher {
 public:
  explicit CudaCacheFlusher(int index);
  ~CudaCacheFlusher();
  CudaCacheFlusher(const CudaCacheFlusher&) = delete;
  CudaCacheFlusher& operator=(const CudaCacheFlusher&) = delete;
  void operator()();

 private:
  int index_;
  std::int64_t bytes_ = 0;
  void* buffer_ = nullptr;
};

}  // namespace tilewise
