/// The operations of expressions for AVX2 with FMA.
#include "cpu/micro/expression_ops_impl.h"

namespace tilewise::cpu {

const ExpressionOps& expression_ops_avx2() {
  static constexpr ExpressionOps kOps = make_expression_ops();
  return kOps;
}

}  // namespace tilewise::cpu
