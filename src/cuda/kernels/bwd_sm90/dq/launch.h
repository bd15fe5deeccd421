/// bwd_dq_sm90 on the host: dQ of what bwd_sm90 leaves to it. See bwd_sm90/dq/README.md.
#pragma once

#include "cuda/driver/launch.h"
#include "cuda/jit/unit.h"
#include "cuda/kernels/bwd_sm90/dq/args.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// Blocks of queries and query heads: what a section's tiles read again and again stays in L2.
bwd_sm90::SectionOrder bwd_dq_sm90_order(const Problem& problem);

KernelUnit bwd_dq_sm90_unit(const bwd_dq_sm90::Config& config);

/// The kernel that goes with a config of bwd_sm90.
Kernel load_bwd_dq_sm90(const bwd_sm90::Config& config, int device);

/// Starts it behind bwd_sm90's on the stream; both have `config` and `args`. `next_tile`: a counter
/// in memory that is zero by then.
void launch_bwd_dq_sm90(const Kernel& kernel, const Problem& problem,
                        const bwd_sm90::Config& config, const bwd_sm90::RaggedArgs& args,
                        unsigned* next_tile, void* stream);

}  // namespace tilewise::cuda
