/// The operations of expressions for AVX-512.
#if defined(__GNUC__) && !defined(__clang__)
// NOTE: as in avx512_lanes.h; here for the functions of the headers.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "cpu/micro/expression_ops_impl.h"

namespace tilewise::cpu {

const ExpressionOps& expression_ops_avx512() {
  static constexpr ExpressionOps kOps = make_expression_ops();
  return kOps;
}

}  // namespace tilewise::cpu
