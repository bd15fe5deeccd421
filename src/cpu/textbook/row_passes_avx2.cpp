/// The row passes for AVX2 with FMA.
#include "cpu/textbook/row_passes_impl.h"

namespace tilewise::cpu {

const RowPasses& row_passes_avx2() {
  static constexpr RowPasses kPasses = make_row_passes();
  return kPasses;
}

}  // namespace tilewise::cpu
