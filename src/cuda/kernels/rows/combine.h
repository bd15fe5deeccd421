/// combine on the host: merges the partial results of split keys. See rows/README.md.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/jit/unit.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// Merges `parts` normalised results o (parts, B, Hq, Sq, padded Dv) with their statistics m, then
/// l, (2, parts, B, Hq, Sq) into the problem's O and LSE.
void combine_parts(const Problem& problem, const float* o, const float* statistics, int parts,
                   void* stream);

void add_combine_units(std::vector<PackUnit>& units);

}  // namespace tilewise::cuda
