/// The mask of a tree of speculative tokens, as kernels that read its words know it again.
#pragma once

#include "expression/program.h"

namespace tilewise::expression {

/// True for the part of tree_mask() that stands beside bottom-right causal, of such words.
bool is_tree(const Program& program, const Tensor& words);

}  // namespace tilewise::expression
