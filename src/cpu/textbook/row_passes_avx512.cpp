/// The row passes for AVX-512.
#if defined(__GNUC__) && !defined(__clang__)
// NOTE: as in micro_avx512.cpp; here for the functions of the header.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "cpu/textbook/row_passes_impl.h"

namespace tilewise::cpu {

const RowPasses& row_passes_avx512() {
  static constexpr RowPasses kPasses = make_row_passes();
  return kPasses;
}

}  // namespace tilewise::cpu
