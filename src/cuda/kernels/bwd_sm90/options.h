/// bwd_sm90 on the host: bool masks, dropout and biases.
#pragma once

#include <string>

#include "cuda/kernels/bwd_sm90/args.h"
#include "problem/problem.h"

namespace tilewise::cuda {

/// What bool masks, sinks, dropout and biases do not go with here; empty when nothing.
std::string bwd_sm90_options_refusal(const Problem& problem);
/// The bias as the producer copies it. In a context: it makes a tensor map.
tile::BiasTiles bwd_sm90_bias_tiles(const Problem& problem, const bwd_sm90::Config& config);

}  // namespace tilewise::cuda
