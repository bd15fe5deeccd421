#include "cpu/isa.h"

#include <cpuid.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tilewise/runtime.h"

namespace tilewise::cpu {
namespace {

// Rough rates per thread for the plan's prediction; `tilewise info --measure` measures the real
// ones.
constexpr double kClockGhz = 2.6;
constexpr double kFlopsPerCycle[] = {4.0, 32.0, 64.0, 64.0};
constexpr double kBandwidthGbpsPerThread = 12.0;
constexpr double kParallelRegionUs = 5.0;

/// CPUID's bit for conversions of float16; clang 14's __builtin_cpu_supports has no name for it.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

Isa detect() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx512) return Isa::avx512;
  return avx2 ? Isa::avx2 : Isa::scalar;
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "CPU";
}

}  // namespace

std::string_view isa_name(Isa isa) {
  constexpr std::string_view kNames[] = {"scalar", "avx2", "avx512", "amx"};
  return kNames[static_cast<int>(isa)];
}

Isa isa_from_name(std::string_view name) {
  for (const Isa isa : {Isa::amx, Isa::avx512, Isa::avx2}) {
    if (isa_name(isa) == name) return isa;
  }
  return Isa::scalar;
}

Isa best_isa() {
  static const Isa best = [] {
    const char* lowered = std::getenv("TILEWISE_CPU_ISA");
    return lowered != nullptr ? std::min(detect(), isa_from_name(lowered)) : detect();
  }();
  return best;
}

Hardware describe_cpu() {
  Hardware machine;
  machine.name = cpu_model();
  machine.memory_bytes =
      static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  machine.threads = default_executor().concurrency();
  machine.isa = isa_name(best_isa());
  const double gflops = kClockGhz * kFlopsPerCycle[static_cast<int>(best_isa())] * machine.threads;
  machine.float32_tflops = gflops * 1e-3;
  machine.matrix_tflops = machine.float32_tflops;
  machine.bandwidth_gbps = kBandwidthGbpsPerThread * machine.threads;
  machine.launch_us = kParallelRegionUs;
  return machine;
}

}  // namespace tilewise::cpu
