/// The derivative of a score function.
#pragma once

#include "expression/program.h"

namespace tilewise::expression {

/// Reverse mode on the nodes. At kinks as torch has it: abs' = 0 at 0, relu' = 0 at 0, clamp' = 1
/// at its bounds, minimum and maximum of two differentiable values share at equality, floor, ceil,
/// round and sign have none. What `where` does not take adds 0, be its derivative infinite.
Gradient derive(const Program& program);

}  // namespace tilewise::expression
