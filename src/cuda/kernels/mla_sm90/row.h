/// mla_sm90 on the host: its row and what the pack holds of it. See mla_sm90/README.md.
#pragma once

#include <vector>

#include "cuda/jit/unit.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

extern const KernelRow kFlashMlaSm90;

void add_mla_sm90_units(std::vector<PackUnit>& units, int arch);

}  // namespace tilewise::cuda
