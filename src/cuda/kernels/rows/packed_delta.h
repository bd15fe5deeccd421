/// bwd_packed_delta on the host. See rows/README.md.
#pragma once

#include "plan/kernel_row.h"

namespace tilewise::cuda {

/// delta of packed sequences, (Hq, total_q) floats, with P worked out anew in sequences so small
/// that rounding of O would show.
void packed_delta(const Problem& problem, float* delta, void* stream);

}  // namespace tilewise::cuda
