#include "problem/grouped.h"

namespace tilewise {

Problem grouped(const Problem& given) {
  Problem p = given;
  const bool alike = !p.bias.defined() && !p.mask.defined() && !p.alibi_slopes.defined() &&
                     !p.sinks.defined() && p.dropout.p == 0.0 && p.score_mod == nullptr &&
                     !p.score_function.defined() && !p.mask_function.defined() &&
                     !p.block_list.defined();
  const bool sees_all =
      p.left == Problem::kUnbounded && p.right >= 0 && p.causal != Causal::top_left;
  if (p.packed || p.seq_q != 1 || p.group() <= 1 || !alike || !sees_all) return p;
  const std::int64_t group = p.group();
  for (Tensor* t : {&p.q, &p.o, &p.lse}) {
    if (!t->defined()) continue;
    t->sizes[1] = p.heads_k;
    t->sizes[2] = group;
    t->strides[2] = t->strides[1];
    t->strides[1] *= group;
  }
  p.heads_q = p.heads_k;
  p.seq_q = p.total_q = group;
  p.causal = Causal::none;
  p.right = Problem::kUnbounded;
  return p;
}

}  // namespace tilewise
