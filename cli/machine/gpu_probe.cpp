#include "cli/machine/gpu_probe.h"

#include <algorithm>

#include "cuda/kernels/ceilings/ceilings.h"
#include "harness/cuda_measure.h"

namespace tilewise::cli {
namespace {

using ceilings::What;
using cuda::CeilingLaunch;

/// Long enough that starting it does not count; so many of them that clocks and heat settle.
constexpr double kRunMs = 10.0;
constexpr TimerOptions kSustained{.warmup = 20, .repeat = 30};

/// Device memory that is given back.
class Buffer {
 public:
  Buffer(DeviceMemory& memory, std::int64_t bytes)
      : memory_(memory), bytes_(bytes), data_(memory.allocate(bytes)) {
    memory.fill(data_, 0x3C, bytes);
  }
  ~Buffer() { memory_.release(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }

 private:
  DeviceMemory& memory_;
  std::int64_t bytes_;
  void* data_;
};

double median_ms(What what, const CeilingLaunch& launch, const Hardware& machine, Clock& clock,
                 const TimerOptions& options) {
  const TimedWork work{.run = [&] { cuda::launch_ceiling(what, launch, machine); }};
  return measure(work, options, clock).ms.median;
}

/// Work of a second, in units of 1e9.
double giga_rate(What what, CeilingLaunch launch, const Hardware& machine, Clock& clock) {
  if (what != What::read && what != What::copy) {
    launch.rounds = 2000;
    const double ms = median_ms(what, launch, machine, clock, {.warmup = 1, .repeat = 3});
    launch.rounds = static_cast<int>(std::clamp(launch.rounds * kRunMs / ms, 1.0, 1e8));
  }
  const double ms = median_ms(what, launch, machine, clock, kSustained);
  return 1e-6 * cuda::ceiling_work(what, launch, machine) / ms;
}

/// Kernels that end at once, one after another.
double measure_launch_us(const CeilingLaunch& launch, const Hardware& machine, Clock& clock) {
  constexpr int kLaunches = 1000;
  const TimedWork work{.run = [&] {
    for (int i = 0; i < kLaunches; ++i) cuda::launch_ceiling(What::float32, launch, machine);
  }};
  return 1e3 * measure(work, {.warmup = 1, .repeat = 5}, clock).ms.median / kLaunches;
}

}  // namespace

GpuCeilings measure_gpu(const Hardware& machine) {
  const std::unique_ptr<DeviceMemory> memory = cuda_memory(machine.device.index);
  const std::unique_ptr<Clock> clock = cuda_clock(machine.device.index);
  // Much more than the L2 cache holds, and a small part of the memory.
  const std::int64_t step = cuda::ceiling_step_bytes(machine);
  const std::int64_t wanted =
      std::min(std::max(std::int64_t{1} << 30, 16 * machine.l2_bytes), machine.memory_bytes / 8);
  const std::int64_t bytes = std::max(step, wanted / step * step);
  const Buffer from(*memory, bytes), to(*memory, bytes);
  const Buffer sums(*memory, 4 * cuda::ceiling_threads(machine));
  const CeilingLaunch copying{.from = from.data(), .to = to.data(), .bytes = bytes};
  const CeilingLaunch reading{.from = from.data(), .to = sums.data(), .bytes = bytes};
  const CeilingLaunch computing{.to = sums.data()};
  const auto giga = [&](What what, const CeilingLaunch& launch) {
    return cuda::has_ceiling(what, machine.arch) ? giga_rate(what, launch, machine, *clock) : 0.0;
  };
  GpuCeilings found;
  found.read_gbps = giga(What::read, reading);
  found.copy_gbps = giga(What::copy, copying);
  found.shared_gbps = giga(What::shared, computing);
  found.float32_tflops = 1e-3 * giga(What::float32, computing);
  found.mma_bf16_tflops = 1e-3 * giga(What::bf16, computing);
  found.mma_tf32_tflops = 1e-3 * giga(What::tf32, computing);
  found.wgmma_bf16_tflops = 1e-3 * giga(What::wgmma, computing);
  found.launch_us = measure_launch_us(computing, machine, *clock);
  return found;
}

}  // namespace tilewise::cli
