/// Figures of a GPU from the vendor or the driver, and the rates that kernels sustain on it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tilewise/plan.h"

namespace tilewise {

/// Peaks, as they are published.
struct GpuFacts {
  std::string name;
  int arch = 0;  ///< 80, 86, 89, 90, ...
  int multiprocessors = 0;
  double clock_mhz = 0.0;             ///< highest; what a driver reports
  double matrix_fma_per_clock = 0.0;  ///< bf16 into float32, of one multiprocessor
  double float32_fma_per_clock = 0.0;
  double bandwidth_gbps = 0.0;  ///< memory, peak
  std::int64_t memory_bytes = 0, l2_bytes = 0;
  int shared_kib = 0;  ///< that one block may ask for
};

/// Shares of the peak rates that long runs sustain, as an H200 did
/// (bench/results/h200/ceilings.json): products on tensor cores, float32 on CUDA cores,
/// memory.
inline constexpr double kSustainedMatrix = 0.82, kSustainedFloat32 = 0.95;
inline constexpr double kSustainedBandwidth = 0.9;

/// bf16 multiply-adds with float32 accumulation of one multiprocessor in a clock, from the vendor's
/// architecture papers. GeForce cards of these generations run them at half the rate of their
/// professional twins.
double matrix_fma_per_clock(int arch, std::string_view name);
/// The same of float32 on the CUDA cores.
double float32_fma_per_clock(int arch);

/// The plan's view of it: rates that long runs sustain, a share of each peak.
Hardware sustained(const GpuFacts& facts);

}  // namespace tilewise
