/// How values become 16-bit operands of the tensor cores: of a Config.
#pragma once

#include "cuda/tile/types.h"

namespace tilewise::tile {

struct Form {
  Element element = Element::bf16;  ///< as the tensor cores read them
  int planes = 1;       ///< 2: an operand is the sum of two 16-bit planes (float32 accuracy)
  bool scaled = false;  ///< operands carry a scale factor per kScaleRows rows; results are float32

  bool operator==(const Form&) const = default;
};

}  // namespace tilewise::tile
