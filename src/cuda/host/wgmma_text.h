/// Device text of wgmma wrappers: one instruction has up to 128 accumulator operands, so the few
/// shapes that a config needs are printed instead of being written out for all.
#pragma once

#include <string>

#include "cuda/tile/types.h"

namespace tilewise::cuda {

/// Products that a kernel asks for with one N.
struct WgmmaShape {
  int n = 0;                          ///< multiple of 8, at most 256
  bool operands_in_shared = false;    ///< multiply_shared
  bool operand_in_registers = false;  ///< multiply_register
  bool transposed_in_shared = false;  ///< multiply_transposed
  bool rows_in_shared = false;        ///< multiply_register_rows
};

/// The specialisation tile::Wgmma<element, shape.n>; needs cuda/tile/hopper/wgmma.cuh before it.
std::string wgmma_text(tile::Element element, const WgmmaShape& shape);

}  // namespace tilewise::cuda
