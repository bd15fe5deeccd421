#include "plan/gpu_facts.h"

namespace tilewise {
namespace {

/// One kernel after another on a stream, microseconds.
constexpr double kLaunchMicroseconds = 3.0;

}  // namespace

double matrix_fma_per_clock(int arch, std::string_view name) {
  const bool half_rate = name.find("GeForce") != std::string_view::npos;
  if (arch >= 120) return half_rate ? 256 : 512;
  if (arch >= 100) return 4096;
  if (arch >= 90) return 2048;
  if (arch == 80) return 1024;
  return half_rate ? 256 : 512;
}

double float32_fma_per_clock(int arch) { return arch == 80 ? 64 : 128; }

Hardware sustained(const GpuFacts& facts) {
  Hardware hw;
  hw.device = {DeviceType::cuda, 0};
  hw.name = facts.name;
  hw.arch = facts.arch;
  hw.multiprocessors = facts.multiprocessors;
  hw.memory_bytes = facts.memory_bytes;
  hw.l2_bytes = facts.l2_bytes;
  hw.shared_kib = facts.shared_kib;
  const double tera_per_fma = 2e-6 * facts.clock_mhz * facts.multiprocessors;
  hw.matrix_tflops = kSustainedMatrix * tera_per_fma * facts.matrix_fma_per_clock;
  hw.float32_tflops = kSustainedFloat32 * tera_per_fma * facts.float32_fma_per_clock;
  hw.bandwidth_gbps = kSustainedBandwidth * facts.bandwidth_gbps;
  hw.launch_us = kLaunchMicroseconds;
  return hw;
}

}  // namespace tilewise
