/// bwd_sinks on the host. See rows/README.md.
#pragma once

#include "cuda/kernels/rows/delta.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// Writes the gradient of the sinks where the problem asks for it, from the rows' final statistics:
/// lse2 is that times `factor`.
void sink_gradient(const Problem& problem, const RowStatistics& rows, void* stream,
                   float factor = 1.0F);

}  // namespace tilewise::cuda
