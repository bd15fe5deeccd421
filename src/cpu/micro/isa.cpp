#include "cpu/micro/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
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
constexpr double kFlopsPerCycle[] = {4.0, 32.0, 64.0, 64.0, 64.0};
constexpr double kBandwidthGbpsPerThread = 12.0;
constexpr double kParallelRegionUs = 5.0;

/// CPUID's bit for conversions of float16; clang 14's __builtin_cpu_supports has no name for it.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

/// CPUID leaf 7.1: dot products of bfloat16.
bool has_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1U << 5)) != 0;
}

/// Tiles and their bfloat16 products in the CPU, their state saved by the system, and this process
/// permitted to use it: Linux asks for that, Documentation/x86/xstate.rst.
bool has_amx() {
  constexpr unsigned kAmxBf16 = 1U << 22, kAmxTile = 1U << 24, kTileState = 3U << 17;
  constexpr int kArchRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  unsigned low = 0, high = 0;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & kTileState) != kTileState) return false;
  return syscall(SYS_arch_prctl, kArchRequestPermission, kTileData) == 0;
}

Isa detect() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx512) return has_bf16() ? (has_amx() ? Isa::amx : Isa::avx512bf16) : Isa::avx512;
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
  constexpr std::string_view kNames[] = {"scalar", "avx2", "avx512", "avx512bf16", "amx"};
  return kNames[static_cast<int>(isa)];
}

Isa isa_from_name(std::string_view name) {
  for (const Isa isa : {Isa::amx, Isa::avx512bf16, Isa::avx512, Isa::avx2}) {
    if (isa_name(isa) == name) return isa;
  }
  return Isa::scalar;
}

namespace {

std::int64_t read_cache_bytes() {
  std::int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) +
                       "/size");
    std::int64_t size = 0;
    char unit = ' ';
    if (!(file >> size)) continue;
    file >> unit;
    const std::int64_t factor = unit == 'K' ? 1024 : unit == 'M' ? 1024 * 1024 : 1;
    largest = std::max(largest, size * factor);
  }
  constexpr std::int64_t kUnknown = std::int64_t{32} << 20;
  return largest > 0 ? largest : kUnknown;
}

struct Found {
  Isa best = detect();
  bool emulated = false;

  Found() {
    const char* wanted = std::getenv("TILEWISE_CPU_ISA");
    if (wanted == nullptr || *wanted == '\0') return;
    const std::string_view name(wanted);
    if (name == "amx_emulated") {
      emulated = best >= Isa::avx512bf16;
      if (emulated) best = Isa::amx;
      return;
    }
    const Isa isa = isa_from_name(name);
    if (name != isa_name(isa)) {
      throw InvalidArgument("TILEWISE_CPU_ISA is \"" + std::string(name) +
                            "\": expected scalar, avx2, avx512, avx512bf16, amx or amx_emulated");
    }
    best = std::min(best, isa);
  }
};

const Found& found() {
  static const Found found;
  return found;
}

}  // namespace

Isa best_isa() { return found().best; }
bool emulate_amx() { return found().emulated; }

std::int64_t last_level_cache_bytes() {
  static const std::int64_t bytes = read_cache_bytes();
  return bytes;
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
  machine.l2_bytes = last_level_cache_bytes();
  machine.at_hand = true;
  return machine;
}

}  // namespace tilewise::cpu
