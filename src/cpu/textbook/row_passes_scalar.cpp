/// The row passes for any x86-64 CPU: SSE2.
#include "cpu/textbook/row_passes_impl.h"

namespace tilewise::cpu {

const RowPasses& row_passes_scalar() {
  static constexpr RowPasses kPasses = make_row_passes();
  return kPasses;
}

}  // namespace tilewise::cpu
