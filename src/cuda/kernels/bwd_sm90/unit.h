/// From a config of bwd_sm90 to the unit that NVRTC compiles.
#pragma once

#include <string>

#include "cuda/jit/unit.h"
#include "cuda/kernels/bwd_sm90/args.h"

namespace tilewise::cuda {

/// ", .logits = {...}" of a Config.
std::string logits_text(const bwd_sm90::Logits& logits);

KernelUnit bwd_sm90_unit(const bwd_sm90::Config& config);

}  // namespace tilewise::cuda
