/// From a mask's program to what it can be over a tile: text for tile_lists/from_function.cuh, in
/// the words of cuda/tile/expression_ranges.cuh.
#pragma once

#include <string>

#include "cuda/host/expression_text.h"

namespace tilewise::cuda {

/// `struct MaskRanges<1>`: the parts of mask_text() as ranges, and what the mask can be where they
/// lie in these.
std::string mask_ranges_text(const expression::Program& program, const FunctionName& name = {});

}  // namespace tilewise::cuda
