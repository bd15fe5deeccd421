/// The row passes for AVX-512.
#include "cpu/row_passes_impl.h"

namespace tilewise::cpu {

const RowPasses& row_passes_avx512() {
  static constexpr RowPasses kPasses = make_row_passes();
  return kPasses;
}

}  // namespace tilewise::cpu
