/// GPUs that plans are made for where there is none.
#pragma once

#include "tilewise/plan.h"

namespace tilewise {

constexpr Device kCuda = {DeviceType::cuda, 0};

/// An A100, an sm_86 or sm_89 card with its shared memory, or an H100, with round figures.
inline Hardware machine(int arch, double bandwidth_gbps = 2000.0) {
  Hardware m;
  m.device = kCuda;
  m.arch = arch;
  m.multiprocessors = arch == 90 ? 132 : 108;
  m.shared_kib = arch == 80 ? 163 : arch == 90 ? 227 : 99;
  m.matrix_tflops = arch == 90 ? 878.0 : 250.0;
  m.float32_tflops = 63.6;
  m.bandwidth_gbps = bandwidth_gbps;
  m.launch_us = 3.0;
  return m;
}

}  // namespace tilewise
