/// The operations of expressions for any x86-64 CPU.
#include "cpu/micro/expression_ops_impl.h"

namespace tilewise::cpu {

const ExpressionOps& expression_ops_scalar() {
  static constexpr ExpressionOps kOps = make_expression_ops();
  return kOps;
}

const ExpressionOps& expression_ops(Isa isa) {
  if (isa >= Isa::avx512) return expression_ops_avx512();
  return isa == Isa::avx2 ? expression_ops_avx2() : expression_ops_scalar();
}

}  // namespace tilewise::cpu
