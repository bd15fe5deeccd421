#include "cpu/textbook/row_passes.h"

namespace tilewise::cpu {

const RowPasses& row_passes(Isa isa) {
  switch (isa) {
    case Isa::amx:
    case Isa::avx512bf16:
    case Isa::avx512:
      return row_passes_avx512();
    case Isa::avx2:
      return row_passes_avx2();
    case Isa::scalar:
      break;
  }
  return row_passes_scalar();
}

}  // namespace tilewise::cpu
