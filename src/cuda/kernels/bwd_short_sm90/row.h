/// bwd_short_sm90 on the host: its row, config and jobs. See bwd_short_sm90/README.md.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/jit/unit.h"
#include "cuda/kernels/bwd_short_sm90/args.h"
#include "plan/kernel_row.h"

namespace tilewise::cuda {

extern const KernelRow kFlashBackwardShortSm90;

/// What a job is all of.
enum class ShortJobs { key_heads, query_heads, passes };

/// The config of a problem.
bwd_short_sm90::Config bwd_short_sm90_config(const Problem& problem, ShortJobs jobs);

/// Jobs of a launch.
std::int64_t bwd_short_sm90_jobs(const Problem& problem, ShortJobs jobs);

/// Predicted milliseconds.
double bwd_short_sm90_ms(const Problem& problem, ShortJobs jobs, const Hardware& machine);

KernelUnit bwd_short_sm90_unit(const bwd_short_sm90::Config& config);

/// Left to their first use, watched by a test: of one plane, of two.
void add_bwd_short_sm90_units(std::vector<PackUnit>& units, int arch, bool two_plane);

}  // namespace tilewise::cuda
