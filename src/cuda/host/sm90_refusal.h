/// Problems that no Hopper kernel supports, whatever its pass.
#pragma once

#include <string>

#include "problem/problem.h"

namespace tilewise::cuda {

/// Names the GPU or the type if the Hopper kernels do not support it. Empty if they do.
std::string sm90_card_refusal(const Problem& problem, const Hardware& machine);
/// Also names an option or a size that the forward and backward kernels of long rows do not
/// support.
std::string sm90_refusal(const Problem& problem, const Hardware& machine);

}  // namespace tilewise::cuda
