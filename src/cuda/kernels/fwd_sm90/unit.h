/// From a config of fwd_sm90 to the unit that NVRTC compiles.
#pragma once

#include <string>

#include "cuda/jit/unit.h"
#include "cuda/kernels/fwd_sm90/args.h"

namespace tilewise::cuda {

/// Empty when the config fits the machine (registers, shared memory), else the reason.
std::string config_refusal(const fwd_sm90::Config& config);

KernelUnit fwd_sm90_unit(const fwd_sm90::Config& config);

}  // namespace tilewise::cuda
