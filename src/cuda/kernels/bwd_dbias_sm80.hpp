/// bwd_dbias_sm80 on the host. See bwd_dbias_sm80.md.
#pragma once

#include "cuda/kernels/bwd_sm80_args.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// Writes the gradient of the bias where the problem asks for it. `pass` and `config` are those of
/// bwd_dq_sm80 on the same problem.
void bias_gradient(const Problem& problem, const bwd_sm80::Args& pass, bwd_sm80::Config config,
                   int min_blocks, void* stream);

}  // namespace tilewise::cuda
