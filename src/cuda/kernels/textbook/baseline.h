/// baseline on CUDA: five plain kernels around a scores buffer. See textbook/README.md.
#pragma once

#include <vector>

#include "cuda/jit/unit.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

extern const KernelRow kBaselineForward;

void add_baseline_units(std::vector<PackUnit>& units);

}  // namespace tilewise::cuda
