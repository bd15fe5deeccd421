/// What no CUDA kernel takes yet, whatever its family.
#pragma once

#include <string>

#include "problem/problem.h"

namespace tilewise::cuda {

/// Names the first type or option that only CPU kernels have; empty when there is none.
std::string option_refusal(const Problem& problem);

}  // namespace tilewise::cuda
