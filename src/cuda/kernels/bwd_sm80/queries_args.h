/// bwd_dq_sm80 takes the constants and parameters of bwd_sm80.
#pragma once

#include "cuda/kernels/bwd_sm80/args.h"

namespace tilewise::bwd_dq_sm80 {

using bwd_sm80::Args;
using bwd_sm80::Config;
using bwd_sm80::kCoarseUnderBias;
using bwd_sm80::RaggedArgs;

}  // namespace tilewise::bwd_dq_sm80
