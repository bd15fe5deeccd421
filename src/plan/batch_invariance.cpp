#include "plan/batch_invariance.h"

#include <limits>

namespace tilewise {

Problem one_entry(const Problem& problem) {
  Problem p = problem;
  p.batch = 1;
  p.key_lengths = {};
  p.listed_pairs = std::numeric_limits<double>::infinity();  // the others' lists count in it
  for (Tensor* t : {&p.q, &p.k, &p.v, &p.o, &p.lse, &p.d_o, &p.d_lse, &p.dq, &p.dk, &p.dv, &p.mask,
                    &p.bias, &p.dbias, &p.alibi_slopes, &p.block_table}) {
    const bool pool = p.paged && (t == &p.k || t == &p.v);
    if (t->defined() && !pool) t->sizes[0] = 1;
  }
  return p;
}

}  // namespace tilewise
