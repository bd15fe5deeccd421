/// What no CUDA kernel takes yet, whatever its family.
#pragma once

#include <string>

#include "problem/problem.h"

namespace tilewise::cuda {

/// Names the first type or option that only CPU kernels have; empty when there is none. Packed
/// sequences count among them unless the kernel takes them.
std::string option_refusal(const Problem& problem, bool takes_packed = false);

}  // namespace tilewise::cuda
